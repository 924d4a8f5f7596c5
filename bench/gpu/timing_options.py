"""What the scripts that time PyTorch are told."""

import argparse


def parser_of(doc: str, samples: int) -> argparse.ArgumentParser:
    """-o FILE, --samples, and what the JSON says of driver and commit."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out")
    parser.add_argument("--samples", type=int, default=samples)
    parser.add_argument("--driver", default="", help="version, for the JSON")
    parser.add_argument("--commit", default="", help="of the package, for the JSON")
    return parser
