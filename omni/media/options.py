"""Settings of media: what a request may have the front end read."""

import msgspec


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where media may come from.

    strict: for requests of people who are not trusted with this machine: whatever is not set otherwise is forbidden.
    """

    strict: bool = False
