"""Exchanges whose sizes are in tensors, on simulated GPUs; see test_simulated_gpus.py."""

from test_simulated_gpus import test_on_simulated_gpus as run_on_simulated_gpus

# Sizes that only the device knows. What there is no room for a later call tells.
UNEVEN = """
every = [np.random.default_rng(7 + rank).integers(-99, 99, (8, 128)).astype(np.float32) for rank in range(2)]
x = every[r]
alive.append(x)
for table in ([[3, 5], [0, 2]], [[0, 0], [8, 0]], [[1, 2], [3, 4]]):
    sizes = np.array(table[r], np.int32)
    alive.append(sizes)
    alive.append(stretto.all_to_all_v(x, sizes))
    alive.append(stretto.all_gather_v(x, sizes[:1]))
    synchronize()
    exchanged, gathered = alive[-2:]
    want = np.concatenate([np.split(e, [s[0], sum(s)])[r] for e, s in zip(every, table)])
    assert exchanged.sizes.tolist() == [s[r] for s in table] and (exchanged.rows[: len(want)] == want).all()
    want = np.concatenate([e[: s[0]] for e, s in zip(every, table)])
    assert gathered.sizes.tolist() == [s[0] for s in table] and (gathered.rows[: len(want)] == want).all()
    wide, landed = sizes.astype(np.int64), np.full((16, 128), 5, np.float32)
    alive.extend([wide, landed])
    alive.append(stretto.all_to_all_v(x, wide, out=landed))
    alive.append(stretto.all_gather_v(x, wide[:1]))
    synchronize()
    for wider, narrow in zip(alive[-2:], (exchanged, gathered)):
        assert wider.sizes.dtype == np.int64 and (wider.sizes == narrow.sizes).all()
        assert (wider.rows[: wider.sizes.sum()] == narrow.rows[: wider.sizes.sum()]).all()
    assert (landed[exchanged.sizes.sum() :] == 5).all()
sizes, out = np.array([6, 0], np.int32), np.full((16, 128), 7, np.float32)
alive.extend([sizes, out])
try:
    stretto.all_to_all_v(x, sizes, out=out[:11])
    while True:
        synchronize()
        stretto.barrier()
except stretto.Fault as error:
    assert "rows_for_max_rows" in str(error), error
assert (out[11:] == 7).all()
stretto.recover()
works(16)
"""


def test_sizes_on_the_device(root, tmp_path):
    run_on_simulated_gpus(UNEVEN, root, tmp_path)
