"""The stubs and statements, by lesson; `pytest lessons/exercises -k 05` judges what is in them."""
