"""Loops that tell the rounds of their lanes apart.

Lanes that diverged go on in the order of the source, so that they meet again where a GPU's do. In
a loop that order runs in a circle: a lane that skips a conditional event is at the first event of
the next round before the others have done the last one of this round. So such a loop counts its
rounds (`msl::Rounds` in runtime.h), and a lane in an earlier round goes first. A loop whose rounds
end with an event that nobody can skip needs none of this: there they all meet.
"""

from tinyrvllm.soft.msl.events import EVENT, MEETING, Events
from tinyrvllm.soft.msl.functions import Function
from tinyrvllm.soft.msl.tokens import Tokens

_CHOICES = ("?", "&&", "||", "{")  # what stands behind may not be evaluated


class Rounds:
    """Finds the loops before the other passes change the tokens; marks them afterwards."""

    def __init__(self, events: Events, matrices: bool) -> None:
        """`matrices`: every lane takes part in matrix operations, so that these are events too."""
        self._tokens = tokens = events.tokens
        self._events = events
        pattern = EVENT if matrices else MEETING
        names = events.leading_to(pattern)
        self._places = [
            i
            for i in events.places
            if pattern.fullmatch(tokens[i]) or tokens[i] in names or events.unknown(i)
        ]
        self._always: set[str] = set()  # functions in which all lanes meet
        self._find_functions_that_meet()
        self._behind: list[tuple[int, str]] = []  # token -> what to write behind it
        for number, i in enumerate(self._loop_words()):
            if self._needs_rounds(i):
                self._count(i, f"msl_rounds{number}")

    def mark(self) -> None:
        for i, text in self._behind:
            self._tokens[i] += text

    def _count(self, i: int, name: str) -> None:
        """Notes what makes the loop at `i` count its rounds."""
        tokens = self._tokens
        self._behind += [(i - 1, f" {{ MSL_ROUNDS({name});"), (_end(tokens, i) - 1, " }")]
        before = i  # of the body
        if tokens[i] != "do":
            before = tokens.after(i + 1) - 1
            start, end = i + 1, before
            if tokens[i] == "for":
                start = min(before, tokens.find(i, ";"))  # not there in `for (x : array)`
                end = min(before, tokens.find(start + 1, ";"))
            if self._inside(end, before):
                self._behind.append((end, f" MSL_LAST({name}),"))
            if self._inside(start, end):
                self._behind.append((start, f" MSL_NEXT({name}),"))
                return
        self._behind += [(before, f" {{ MSL_NEXT({name});"), (_end(tokens, before + 1) - 1, " }")]

    def _inside(self, start: int, end: int) -> list[int]:
        return [i for i in self._places if start <= i < end]

    def _loop_words(self) -> list[int]:
        tokens, of_do, found = self._tokens, set[int](), []
        for i in range(len(tokens)):
            if tokens[i] == "do":
                of_do.add(_end(tokens, i + 1))
            if tokens[i] in ("for", "while", "do") and i not in of_do:
                found.append(i)
        return found

    def _needs_rounds(self, i: int) -> bool:
        tokens = self._tokens
        end = _end(tokens, i)
        inside = self._inside(i, end)
        if not inside:
            return False
        if tokens[i] == "do":
            start = i + 1
        else:
            start = tokens.after(i + 1)
            step = tokens.find(tokens.find(i, ";") + 1, ";")
            if tokens[i] == "for" and self._inside(step, start):
                return True
        if not self._inside(start, end):
            return False  # the condition alone, which all who are still there evaluate
        return self._continues(start, end) or not self._surely_met(inside[-1], start, end)

    def _continues(self, start: int, end: int) -> bool:
        """Whether a `continue` goes back to this loop, and not to one inside it."""
        i = start
        while i < end:
            if self._tokens[i] == "continue":
                return True
            if self._tokens[i] in ("for", "while", "do"):
                i = _end(self._tokens, i)
            else:
                i += 1
        return False

    def _surely_met(self, event: int, i: int, end: int) -> bool:
        """Whether every lane that runs the statement i..end comes to `event`, or leaves the loop."""
        tokens = self._tokens
        if not self._meets(event):
            return False
        if tokens[i] == "{" and end == tokens.after(i):
            i += 1
        after = _end(tokens, i)
        while i < after <= event:
            i, after = after, _end(tokens, after)
        if tokens[i] == "{":
            return self._surely_met(event, i, after)
        if tokens[i] in ("for", "while", "do", "else", "case", "default"):
            return False
        if tokens[i] in ("if", "switch"):
            paren = tokens.find(i, "(")
            return event < tokens.after(paren) and not self._chosen(paren, event)
        return not self._chosen(i, event)

    def _chosen(self, start: int, event: int) -> bool:
        return any(self._tokens[i] in _CHOICES for i in range(start, event))

    def _meets(self, event: int) -> bool:
        word = self._tokens[event]
        return bool(EVENT.fullmatch(word)) or word in self._always

    def conditional(self, start: int, event: int) -> bool:
        """Whether some lanes may pass by `event`, in an expression that begins at `start`."""
        return self._chosen(start, event) or not self._meets(event)

    def _find_functions_that_meet(self) -> None:
        """Names of functions whose last event all lanes come to, whatever they are given."""
        named: dict[str, list[Function]] = {}
        for f in self._events.functions:
            if f.body[1] and not f.late:
                named.setdefault(f.name, []).append(f)
        found = {""}
        while found:
            left = ((name, those) for name, those in named.items() if name not in self._always)
            found = {name for name, those in left if all(map(self._always_meets, those))}
            self._always |= found

    def _always_meets(self, f: Function) -> bool:
        inside = self._inside(*f.body)
        if not inside or "return" in (self._tokens[i] for i in range(f.body[0], inside[-1] - 1)):
            return False
        return self._surely_met(inside[-1], *f.body)


def _end(tokens: Tokens, i: int) -> int:
    """The position after the statement at `i`."""
    word = tokens[i]
    if word == "{":
        return tokens.after(i)
    if word == "_Pragma":  # left where the preprocessor is not clang's
        return _end(tokens, tokens.after(i + 1))
    if word in ("if", "for", "while", "switch"):
        end = _end(tokens, tokens.after(tokens.find(i, "(")))
        return _end(tokens, end + 1) if word == "if" and tokens[end] == "else" else end
    if word == "do":
        return tokens.find(_end(tokens, i + 1), ";") + 1
    while tokens[i] not in (";", "}", ""):
        i = tokens.after(i) if tokens[i] in ("(", "[", "[[", "{") else i + 1
    return i + 1 if tokens[i] == ";" else i
