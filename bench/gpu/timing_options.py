"""What the scripts that time PyTorch are told."""

import argparse
import os
import sys


def parser_of(doc: str, samples: int) -> argparse.ArgumentParser:
    """-o FILE, --samples, and what the JSON says of driver and commit."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out")
    parser.add_argument("--samples", type=int, default=samples)
    parser.add_argument("--driver", default="", help="version, for the JSON")
    parser.add_argument("--commit", default="", help="of the package, for the JSON")
    return parser


def command_line() -> str:
    """That this process runs, but for the folder of the program."""
    return " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
