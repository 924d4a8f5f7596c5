"""Groups of torch.distributed, by the names that they have here."""

from __future__ import annotations

from typing import Any, List, Optional


def name_of_torch(group: Any) -> Optional[str]:
    """What a torch.distributed group is called here; None for anything else."""
    name = getattr(group, "group_name", None)
    return f"torch.distributed group {name}" if isinstance(name, str) else None


def ranks_of_torch(group: Any) -> Optional[List[int]]:
    """None for one that was destroyed."""
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel

    try:
        return dist.get_process_group_ranks(group)
    except (KeyError, RuntimeError, ValueError):
        return None
