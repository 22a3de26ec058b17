#!/usr/bin/env python3
"""Makes a feed with python-tuf, in the layout that rollproxy-updater reads.

    make_feed.py <outdir> <archive> <version> <triple> <channel>

Prints {"root": <path of the root of trust>, "sha256": <its digest>}. Needs the package `tuf` (7 or later) with `cryptography`.
"""

import hashlib
import json
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    SPECIFICATION_VERSION,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)
from tuf.api.serialization.json import JSONSerializer

ROLES = ["root", "targets", "snapshot", "timestamp"]


def main() -> int:
    if len(sys.argv) != 6:
        print(__doc__, file=sys.stderr)
        return 64
    out, archive, version, triple, channel = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
    print(json.dumps(make(out, archive.read_bytes(), version, triple, channel)))
    return 0


def make(out: Path, archive: bytes, version: str, triple: str, channel: str) -> dict:
    # Whole seconds: fractions are outside the specification.
    expires = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=30)
    spec = ".".join(SPECIFICATION_VERSION)
    signers = {role: CryptoSigner.generate_ed25519() for role in ROLES}

    archive_name = f"rollproxy/{triple}/{version}.tar.gz"
    offer = {"schema": 1, "version": version, "archive": archive_name, "notes": "made with python-tuf"}
    targets = Targets(1, spec, expires)
    put_target(out, targets, archive_name, archive, {"schema": 1, "version": version})
    put_target(out, targets, f"rollproxy/{triple}/{channel}.json", json.dumps(offer).encode(), None)

    root = Root(1, spec, expires, consistent_snapshot=True)
    for role in ROLES:
        root.add_key(signers[role].public_key, role)

    metadata = out / "metadata"
    metadata.mkdir(parents=True, exist_ok=True)
    targets_bytes = put_metadata(metadata / "1.targets.json", targets, signers["targets"])
    snapshot = Snapshot(1, spec, expires, {"targets.json": pin(targets_bytes)})
    snapshot_bytes = put_metadata(metadata / "1.snapshot.json", snapshot, signers["snapshot"])
    timestamp = Timestamp(1, spec, expires, pin(snapshot_bytes))
    put_metadata(metadata / "timestamp.json", timestamp, signers["timestamp"])
    root_bytes = put_metadata(metadata / "1.root.json", root, signers["root"])
    return {"root": str(metadata / "1.root.json"), "sha256": hashlib.sha256(root_bytes).hexdigest()}


def put_target(out: Path, targets: Targets, name: str, data: bytes, custom: dict | None) -> None:
    target = TargetFile.from_data(name, data, ["sha256"])
    if custom is not None:
        target.unrecognized_fields["custom"] = custom
    targets.targets[name] = target
    folder, base = name.rsplit("/", 1)
    path = out / "targets" / folder / f"{target.hashes['sha256']}.{base}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def put_metadata(path: Path, signed, signer: CryptoSigner) -> bytes:
    metadata = Metadata(signed)
    metadata.sign(signer)
    data = metadata.to_bytes(JSONSerializer(compact=False))
    path.write_bytes(data)
    return data


def pin(data: bytes) -> MetaFile:
    return MetaFile(1, len(data), {"sha256": hashlib.sha256(data).hexdigest()})


if __name__ == "__main__":
    sys.exit(main())
