"""What the files of results say that scripts which time PyTorch write."""

import argparse
import datetime
import json

import torch
from timing_options import command_line


def facts(options: argparse.Namespace) -> dict:
    """What a file of results says beside its rows."""
    gpu = torch.cuda.is_available()
    machine = torch.cuda.get_device_name(0) if gpu else "no GPU: simulated on the CPU"
    return {"machine": machine, "driver": options.driver, "commit": options.commit,
            "command": command_line(), "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version() if gpu else None,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}


def save(result: dict, path: str):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
