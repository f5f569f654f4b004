"""Where nodes leave messages for who began their work, and see whether to give it up. Does not import torch."""

from typing import Any

Message = tuple[str, int, tuple[Any, ...]]  # a method of `Progress`, of all trials (-1) or of one by its place


class Board:
    """An actor of Ray. If it is lost, progress is, and no result."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, int, Message]] = []
        self.given_up: dict[int, str] = {}

    def post(self, key: int, attempt: int, messages: list[Message]) -> str:
        """Why the work is to be given up; "" while it is not."""
        self.messages += [(key, attempt, message) for message in messages]
        return self.given_up.get(key, "")

    def take(self) -> list[tuple[int, int, Message]]:
        taken, self.messages = self.messages, []
        return taken

    def give_up(self, key: int, why: str) -> None:
        self.given_up[key] = why
