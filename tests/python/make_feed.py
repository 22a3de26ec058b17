#!/usr/bin/env python3
"""Makes a feed with python-tuf, in the layout that rollproxy-updater reads.

    make_feed.py <outdir> <archive> <version> <triple> <channel>

The channel's file is signed by a role of its own, to which `targets` delegates, terminating; the root has two of three keys.

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
    DelegatedRole,
    Delegations,
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
    signers = {role: [CryptoSigner.generate_ed25519() for _ in range(3 if role == "root" else 1)] for role in ROLES}
    channel_role, channel_signer = f"channel-{channel}", CryptoSigner.generate_ed25519()

    archive_name = f"rollproxy/{triple}/{version}.tar.gz"
    offer = {"schema": 1, "version": version, "archive": archive_name, "notes": "made with python-tuf"}
    targets = Targets(1, spec, expires)
    put_target(out, targets, archive_name, archive, {"schema": 1, "version": version})
    delegated = DelegatedRole(channel_role, [], 1, True, paths=[f"rollproxy/*/{channel}.json"])
    targets.delegations = Delegations({}, {channel_role: delegated})
    targets.add_key(channel_signer.public_key, channel_role)
    offers = Targets(1, spec, expires)
    put_target(out, offers, f"rollproxy/{triple}/{channel}.json", json.dumps(offer).encode(), None)

    root = Root(1, spec, expires, consistent_snapshot=True)
    for role in ROLES:
        for signer in signers[role]:
            root.add_key(signer.public_key, role)
    root.roles["root"].threshold = 2

    metadata = out / "metadata"
    metadata.mkdir(parents=True, exist_ok=True)
    offers_bytes = put_metadata(metadata / f"1.{channel_role}.json", offers, [channel_signer])
    targets_bytes = put_metadata(metadata / "1.targets.json", targets, signers["targets"])
    pins = {"targets.json": pin(targets_bytes), f"{channel_role}.json": pin(offers_bytes)}
    snapshot_bytes = put_metadata(metadata / "1.snapshot.json", Snapshot(1, spec, expires, pins), signers["snapshot"])
    timestamp = Timestamp(1, spec, expires, pin(snapshot_bytes))
    put_metadata(metadata / "timestamp.json", timestamp, signers["timestamp"])
    # Two of the three keys are enough.
    root_bytes = put_metadata(metadata / "1.root.json", root, signers["root"][:2])
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


def put_metadata(path: Path, signed, signers: list[CryptoSigner]) -> bytes:
    metadata = Metadata(signed)
    for signer in signers:
        metadata.sign(signer, append=True)
    data = metadata.to_bytes(JSONSerializer(compact=False))
    path.write_bytes(data)
    return data


def pin(data: bytes) -> MetaFile:
    return MetaFile(1, len(data), {"sha256": hashlib.sha256(data).hexdigest()})


if __name__ == "__main__":
    sys.exit(main())
