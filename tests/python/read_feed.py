#!/usr/bin/env python3
"""Reads one target of a feed with python-tuf's own client.

    read_feed.py <metadata url> <targets url> <root.json> <target name> <outdir>

The URLs may be file:// ones, too. Prints {"target": <path of the downloaded file>, "sha256": <its digest>, "custom": <what the feed says about it>}.
Needs the package `tuf` (7 or later) with `cryptography`.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import FetcherInterface, Updater


class Files(FetcherInterface):
    """A feed in a folder of this machine."""

    def _fetch(self, url: str) -> Iterator[bytes]:
        path = Path(unquote(urlsplit(url).path))
        if not path.is_file():
            raise DownloadHTTPError(f"no file {path}", 404)
        return iter([path.read_bytes()])


def main() -> int:
    if len(sys.argv) != 6:
        print(__doc__, file=sys.stderr)
        return 64
    metadata_url, targets_url, root, name = sys.argv[1:5]
    out = Path(sys.argv[5])
    cache = out / "metadata"
    cache.mkdir(parents=True, exist_ok=True)
    updater = Updater(
        str(cache),
        with_slash(metadata_url),
        str(out),
        with_slash(targets_url),
        fetcher=Files() if metadata_url.startswith("file:") else None,
        bootstrap=Path(root).read_bytes(),
    )
    updater.refresh()
    info = updater.get_targetinfo(name)
    if info is None:
        print(f"the feed has no target {name}", file=sys.stderr)
        return 1
    path = Path(updater.download_target(info, str(out / "target")))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    print(json.dumps({"target": str(path), "sha256": digest, "custom": info.custom}))
    return 0


def with_slash(url: str) -> str:
    return url if url.endswith("/") else url + "/"


if __name__ == "__main__":
    sys.exit(main())
