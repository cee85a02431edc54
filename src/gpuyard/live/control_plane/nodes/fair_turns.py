"""Turns of users to pass on a frame of a terminal, shell or port through the scheduler's only thread.

One frame is passed on in each round of the event loop, by the users in turn. So a user with a hundred busy channels
gets no more of the thread than one with a single channel, a frame of another user waits for at most one frame of each
busy user, and the work of the scheduler comes between any two frames.
"""

import asyncio
from collections import deque


class FairTurns:
    """Who is next. A user's own frames keep their order."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Frames by user; the first user is next."""
        self._is_taken = False
        """Whether a frame has been passed on in this round."""

    async def take(self, user: str) -> None:
        """Wait for the turn of a user."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._give)
            return
        turn = loop.create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        await turn

    def _give(self) -> None:
        """Give a turn to the next user, in a new round."""
        while self._waiting:
            user = next(iter(self._waiting))
            turns = self._waiting.pop(user)
            turn = turns.popleft()
            if turns:
                self._waiting[user] = turns  # behind the others
            if not turn.done():  # otherwise its channel has ended
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._give)
                return
        self._is_taken = False
