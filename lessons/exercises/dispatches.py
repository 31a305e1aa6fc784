"""What the exercise of lesson 13 is about: dispatches with their read and write sets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Bytes first to end - 1 of a buffer."""

    buffer: str
    first: int
    end: int

    def overlaps(self, other: "Span") -> bool:
        """Whether the two share a byte."""
        return self.buffer == other.buffer and self.first < other.end and other.first < self.end

    def __repr__(self) -> str:
        return f"{self.buffer}[{self.first}:{self.end}]"


@dataclass(frozen=True)
class Dispatch:
    """A kernel, what it may read and what it may write."""

    name: str
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]

    def __repr__(self) -> str:
        return self.name
