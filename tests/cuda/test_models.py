"""Whole models of every architecture, on an NVIDIA GPU."""

from tests.cuda import gpu

gpu.require()

from tests.runner.test_greedy import (  # noqa: F401
    test_a_reader_may_stop_early_and_another_batch_may_run,
    test_chained_tokens_are_those_of_plain_steps,
    test_rows_that_are_no_distribution_are_flagged,
    test_sequences_side_by_side,
    test_the_context_s_last_slot_and_a_change_of_bucket,
)
from tests.runner.test_many_cores import (  # noqa: F401
    q8_0,
    test_a_model_with_weights_in_order,
    test_attention_rotates_where_all_decode,
    test_every_architecture,
    test_weights_in_the_device_s_order,
)
from tests.runner.test_metal import (  # noqa: F401
    test_a_step_allocates_nothing_and_writes_only_the_step_buffer,
    test_any_schedule,
    test_batch_invariant_rows_do_not_depend_on_their_neighbours,
    test_every_architecture_in_chunks,
    test_everything_in_one_step,
    test_half_precision_is_close,
    test_indirect_replay_gives_the_same_bits,
    test_rows_beyond_one_command_buffer,
    test_some_rows_and_none,
)
