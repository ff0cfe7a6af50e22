"""Settings of media: allowed sources and sizes."""

import msgspec


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allowed sources and sizes of media. Data URIs, bytes, arrays and pictures are always allowed.

    strict: for requests of untrusted users: `remote`, `private_addresses`, `proxies` and `local` then default to False, otherwise
        to True.
    remote: whether media are downloaded from http(s) URLs; under `strict`, None allows it if `allowed_domains` is set.
    allowed_domains: of downloads, `"example.com"` exactly, `".example.com"` with its subdomains; None allows any.
    private_addresses: whether hosts may have addresses outside of the public internet: private, loopback, link-local, shared,
        multicast, reserved. Every address that is connected to is checked, redirects too.
    proxies: whether HTTP_PROXY, HTTPS_PROXY and NO_PROXY are used; the proxy then has to check addresses.
    local: whether paths and `file:` URLs are opened; under `strict`, None allows it if `local_folder` is set.
    local_folder: allows only files below it, after following symbolic links; None allows all.
    download_seconds: for one download, from resolving its host to its last byte.
    max_downloads: at once; more wait. max_downloads_per_request: more are refused. max_redirects: of one download.
    max_audio_bytes, max_image_bytes: of one encoded file.
    max_audio_seconds: of one clip. max_audio_samples: of one clip at its own rate, all channels counted.
    max_image_pixels: of one picture.
    """

    strict: bool = False
    remote: bool | None = None
    allowed_domains: tuple[str, ...] | None = None
    private_addresses: bool | None = None
    proxies: bool | None = None
    local: bool | None = None
    local_folder: str | None = None
    download_seconds: float = 30.0
    max_downloads: int = 32
    max_downloads_per_request: int = 256
    max_redirects: int = 10
    max_audio_bytes: int = 512 * 2**20
    max_image_bytes: int = 64 * 2**20
    max_audio_seconds: float = 1200.0
    max_audio_samples: int = 128 * 2**20
    max_image_pixels: int = 64 * 2**20

    def __post_init__(self) -> None:
        for name in (
            *("download_seconds", "max_downloads", "max_downloads_per_request", "max_audio_bytes", "max_image_bytes"),
            *("max_audio_seconds", "max_audio_samples", "max_image_pixels"),
        ):
            if not self.__getattribute__(name) > 0:
                raise ValueError(f"{name} must be greater than 0")
        if self.max_redirects < 0:
            raise ValueError("max_redirects must be at least 0")
        if self.max_image_pixels > _PILLOWS_PIXELS:
            raise ValueError(f"max_image_pixels must be at most {_PILLOWS_PIXELS}, the limit of Pillow")
        for domain in self.allowed_domains or ():
            if not domain.strip(".") or set(domain) & set("/:*@% "):
                raise ValueError(f"allowed_domains must be names such as example.com or .example.com, not {domain!r}")

    @property
    def allows_remote(self) -> bool:
        return self._or_lenient(self.remote, self.allowed_domains is not None)

    @property
    def allows_private(self) -> bool:
        return self._or_lenient(self.private_addresses, False)

    @property
    def uses_proxies(self) -> bool:
        return self._or_lenient(self.proxies, False)

    @property
    def allows_local(self) -> bool:
        return self._or_lenient(self.local, self.local_folder is not None)

    @property
    def max_bytes(self) -> int:
        """Maximum size of a file of either kind."""
        return max(self.max_audio_bytes, self.max_image_bytes)

    def _or_lenient(self, setting: bool | None, narrowed: bool) -> bool:
        return setting if setting is not None else narrowed or not self.strict


_PILLOWS_PIXELS = 178_956_970
"""Twice `Image.MAX_IMAGE_PIXELS`; Pillow refuses more."""
