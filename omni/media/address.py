"""Network addresses of the public internet."""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

_INTERNET = ip_network("2000::/3")
"""All allocated addresses of IPv6. Outside are loopback, link-local, unique local, multicast, and IPv4 addresses: mapped
(::ffff:0:0/96) and translated (64:ff9b::/96, 64:ff9b:1::/48)."""

# IANA's registries of special-purpose addresses. The tables of `ipaddress` depend on the release of Python.
_SPECIAL = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared behind a carrier's NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local; metadata of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address is in it
        "3fff::/20",  # documentation
    )
)


def is_public(address: str) -> bool:
    """Whether an IPv4 or IPv6 address is on the public internet. Raises ValueError for other texts."""
    found = ip_address(address)
    if found.version == 6 and found not in _INTERNET:
        return False
    return not any(found in special for special in _SPECIAL_OF[found.version])


_SPECIAL_OF: dict[int, tuple[IPv4Network | IPv6Network, ...]] = {
    version: tuple(network for network in _SPECIAL if network.version == version) for version in (4, 6)
}
