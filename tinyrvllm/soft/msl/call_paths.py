"""Functions with simd operations or barriers learn where they are called from.

A simd operation in a function that both sides of a branch call is two operations: the lanes of one
side must not meet those of the other. So each such function takes the place of its call
(`msl::From`, first of its parameters) and notes it while it runs (`msl::Call` in runtime.h). Where
a function is called that cannot be told (events.py), whoever calls it notes the place.
"""

from tinyrvllm.soft.msl.events import EVENT, MEETING, Events
from tinyrvllm.soft.msl.functions import Function, lambdas
from tinyrvllm.soft.msl.rounds import Rounds
from tinyrvllm.soft.msl.tokens import Tokens

COLUMNS = 8192  # of a line: runtime.h's
_LATER = "0x00000000u"


class CallPaths:
    """Finds the functions before the other passes change the tokens; marks them afterwards."""

    def __init__(self, tokens: Tokens, events: Events, rounds: Rounds) -> None:
        self._tokens, self._events = tokens, events
        for f in events.functions:
            if not f.name and events.has_event(f):
                what = "a simd operation or barrier in an operator"
                raise self._unsupported(f.at, what, "make it a function with a name")
            for i in range(tokens.after(f.parameters), f.body[0]):
                if f.late and events.call(i):
                    what = "a simd operation or barrier before the body of a constructor"
                    raise self._unsupported(i, what, "move it into the body")
        marked = events.names - events.values
        self._functions = [
            f
            for f in events.functions
            if f.name in marked and (not f.late or events.has_event(f))
        ]
        self._noting = {f for f in self._functions if events.has_event(f)}
        # An overload of an operation of metal_stdlib is called like the operation itself.
        own = {i for i in events.calls if tokens[i] in marked and not EVENT.fullmatch(tokens[i])}
        self._calls = [events.call(i) for i in sorted(own)]
        self._without_place = events.types | events.values
        outer = [i for i in events.places if self._is_outer(i, rounds)]
        self._late = [self._close(i) for i in outer if MEETING.fullmatch(tokens[i])]
        self._numbered = {events.call(i): self._close(i) for i in outer}
        values = (i for i in events.places if i not in own and events.calls_value(i))
        self._values = [(events.callee(i), events.call(i), self._close(i)) for i in values]

    def _close(self, i: int) -> int:
        """The closing parenthesis of the call whose name is at `i`."""
        return self._tokens.after(self._events.call(i)) - 1

    def _is_outer(self, i: int, rounds: Rounds) -> bool:
        """Whether lanes may be at an event in the arguments of this one while others are at it."""
        tokens, paren = self._tokens, self._events.call(i)
        if tokens[paren] != "(":
            return False
        close = self._close(i)
        later = list(lambdas(tokens, range(paren, close)))
        inside = [
            k
            for k in self._events.places
            if paren < k < close and not any(k in body for body in later)
        ]
        if not any(rounds.conditional(paren, k) for k in inside):
            return False
        refused = EVENT.fullmatch(tokens[i]) and not MEETING.fullmatch(tokens[i])
        if refused or "_fill_" in tokens[i] or tokens[i] in self._without_place:
            what = f"a simd operation that not all lanes come to, inside '{tokens[i]}(...)',"
            raise self._unsupported(inside[-1], what, "give its result to a variable first")
        return True

    def _unsupported(self, at: int, what: str, instead: str) -> Exception:
        text = f"{what} is not supported by the software device: {instead}"
        return self._tokens.error(at, text)

    def mark(self) -> None:
        tokens = self._tokens
        for close in self._late:
            tokens[close] = " MSL_AND_BEHIND" + tokens[close]
        for paren in self._calls:
            if paren in self._numbered:
                tokens[paren] += f"MSL_FROM_AT_AND({_LATER}) "
            else:
                tokens[paren] += "MSL_FROM" if tokens[paren + 1] == ")" else "MSL_FROM_AND "
        for start, paren, close in self._values:
            if paren in self._numbered:
                tokens[start] = f"msl::calling({_LATER}, " + tokens[start]
                tokens[paren - 1] += ")"
            else:
                tokens[start] = "({ MSL_CALLING; " + tokens[start]
                tokens[close] += "; })"
        for f in self._functions:
            self._mark_function(f)

    def number(self) -> None:
        """Gives a call whose arguments have events a place behind them. When all is written."""
        starts = {paren: start for start, paren, _ in self._values}
        for paren, close in self._numbered.items():
            line, column = self._tokens.place(close)
            i = starts.get(paren, paren)
            place = f"0x{line * COLUMNS + column:08x}u"
            self._tokens[i] = self._tokens[i].replace(_LATER, place, 1)

    def _mark_function(self, f: Function) -> None:
        tokens = self._tokens
        first, last = f.parameters + 1, tokens.after(f.parameters) - 1
        if tokens.text(first, last) == "void":
            tokens[first] = ""
        none = not tokens.text(first, last)
        if f.late or EVENT.fullmatch(f.name):
            tokens[last] = ("MSL_CALLER_LAST" if none else " MSL_AND_CALLER_LAST") + tokens[last]
        else:
            tokens[f.parameters] += "MSL_CALLER" if none else "MSL_CALLER_AND "
        if f in self._noting:
            tokens[f.body[0]] += " MSL_ENTER;"
            for before in reversed(range(f.at)):
                if tokens[before] in (";", "{", "}"):
                    break
                if tokens[before] == "constexpr":  # such a function never is
                    tokens[before] = ""
