"""The routes that have something to do in a turn of the engine."""

from collections.abc import Callable
from typing import TypeVar

from omni.engine.active import ActiveRequest
from omni.engine.route import InRoute, OutRoute
from omni.engine.user_route import UserRoute
from omni.errors import OmniError

RouteT = TypeVar("RouteT", OutRoute, InRoute, UserRoute)


class BusyRoutes:
    """Routes with payloads under way, the longest busy first. Waiting requests cost no time.

    fail: called with a request's id and the error of one of its routes. given: called with a route to the user that has
    finished.
    """

    def __init__(self, fail: Callable[[str, OmniError], None], given: Callable[[UserRoute], None]) -> None:
        self._fail = fail
        self._given = given
        self._outs: dict[OutRoute, None] = {}
        self._ins: dict[InRoute, None] = {}
        self._users: dict[UserRoute, None] = {}
        self._new_outs: dict[OutRoute, None] = {}
        self._new_ins: dict[InRoute, None] = {}
        """Those with something new since the last delivery."""

    def add_out(self, route: OutRoute) -> None:
        self._new_outs[route] = None

    def add_in(self, route: InRoute) -> None:
        self._new_ins[route] = None

    def add_user(self, route: UserRoute) -> None:
        self._users[route] = None

    def discard(self, active: ActiveRequest) -> None:
        """The routes of a request that leaves."""
        for out in active.outs.values():
            self._outs.pop(out, None)
            self._new_outs.pop(out, None)
        for arriving in active.ins.values():
            self._ins.pop(arriving, None)
            self._new_ins.pop(arriving, None)
        for route in active.given.values():
            self._users.pop(route, None)

    def deliver(self) -> bool:
        """Ticks the routes with something new once. Those still busy are ticked in later turns. Returns whether anything
        happened."""
        moved = False
        if self._new_outs:
            outs, self._new_outs = self._new_outs, {}
            moved |= self._tick(outs)
            self._outs |= outs
        if self._new_ins:
            ins, self._new_ins = self._new_ins, {}
            moved |= self._tick(ins)
            self._ins |= ins
        return moved

    def tick(self) -> bool:
        """Ticks all routes once, producers' ends first. Returns whether anything happened."""
        moved = self._tick(self._outs) | self.deliver()
        return moved | self._tick(self._ins) | self._tick(self._users)

    def _tick(self, routes: dict[RouteT, None]) -> bool:
        moved = False
        for route in list(routes):
            try:
                moved |= route.tick()
                if isinstance(route, UserRoute) and route.finished:
                    self._given(route)
            except OmniError as error:
                self._fail(route.request_id, error)
            if not route.busy:
                routes.pop(route, None)
        return moved
