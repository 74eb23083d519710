#!/usr/bin/env python3
"""apps/examples/read_checkpoint.py [--verify] CHECKPOINT [DATASET]

Reads a checkpoint of Aliquot without Aliquot. CHECKPOINT is a directory such as runs/a/step-00000100. Prints its
attributes and its datasets with their shapes and types, or the values of one dataset, for example parameters/wte.weight. Needs
h5py and numpy.

--verify: checks the checksums of both files in place of that, and prints the digest of the parameters, which
`aliquot train` prints too. Needs only Python.
"""
import hashlib
import json
import pathlib
import sys


def crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


def crc32c(data, table):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def read_manifest(checkpoint):
    """Returns the manifest. Its SHA-256 is that of its text with zeros in place of the 64 digits."""
    text = (checkpoint / "manifest.json").read_bytes()
    manifest = json.loads(text)
    digits = manifest["sha256"].encode()
    at = text.rindex(digits)
    zeroed = text[:at] + b"0" * 64 + text[at + 64 :]
    if hashlib.sha256(zeroed).hexdigest().encode() != digits:
        sys.exit(f"{checkpoint}/manifest.json does not match its SHA-256")
    return manifest


def verify(checkpoint):
    manifest = read_manifest(checkpoint)
    state, table = manifest["file"], crc32c_table()
    with open(checkpoint / state["name"], "rb") as file:
        for number, expected in enumerate(state["crc32c"]):
            if f"{crc32c(file.read(state['tile_bytes']), table):08x}" != expected:
                sys.exit(f"{checkpoint}/{state['name']}: bytes {number * state['tile_bytes']} and following do not match "
                         f"their CRC-32C {expected}")
        lines = []
        for tensor in manifest["tensors"]:  # sorted by path
            if not tensor["path"].startswith("parameters/"):
                continue
            file.seek(tensor["offset"] or 0)
            digest = hashlib.sha256(file.read(tensor["bytes"])).hexdigest()
            shape = "x".join(map(str, tensor["shape"])) or "1"
            lines.append(f"{tensor['path'].removeprefix('parameters/')} {tensor['dtype']} {shape} {digest}\n")
    print(f"step {manifest['step']}: {len(state['crc32c'])} checksums match")
    print("digest", hashlib.sha256("".join(lines).encode()).hexdigest())


def show(checkpoint, dataset):
    import h5py  # only here, so that --verify does not need it

    with h5py.File(checkpoint / "state.h5", "r") as file:
        if dataset:
            print(file[dataset][...])
            return
        for name, value in sorted(file.attrs.items()):
            print(f"{name} = {value.decode() if isinstance(value, bytes) else value}")
        file.visititems(lambda path, item: print(path, item.dtype, item.shape) if isinstance(item, h5py.Dataset) else None)


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
    elif arguments[0] == "--verify" and len(arguments) == 2:
        verify(pathlib.Path(arguments[1]))
    elif arguments[0] != "--verify" and len(arguments) <= 2:
        show(pathlib.Path(arguments[0]), "".join(arguments[1:]))
    else:
        sys.exit("read_checkpoint.py: expected [--verify] CHECKPOINT [DATASET]; see --help")


if __name__ == "__main__":
    main(sys.argv[1:])
