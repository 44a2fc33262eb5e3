"""Classifies images on several hosts. Each host runs this script with its own part of a batch.

    python examples/multihost/classify.py ADDRESS:PORT HOSTS HOST OUT.npy

ADDRESS:PORT is the address of host 0, HOSTS is the number of hosts, and HOST is the number of this
host, from 0 on. Host 0 writes the probabilities of all images.
"""

import sys
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

import nnef_jax

address, hosts, host, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(
    address,
    hosts,
    host,
    initialization_timeout=30,  # seconds until it is an error that a host has not joined
    heartbeat_timeout_seconds=10,  # seconds until it is an error that a host is gone
)

mesh = jax.make_mesh((jax.device_count(),), ("data",))
model = nnef_jax.load(Path(__file__).parents[1] / "digits" / "model")
model = model.shard(mesh, batch="data", params="data")  # a host reads only its part of each file

images = np.random.default_rng(0).random((64, 1, 8, 8), np.float32)
probabilities = model(np.split(images, hosts)[host])  # an array over all hosts
arrays = {**model.params, "probabilities": probabilities}
print("host", host, "holds", {k: v.addressable_shards[0].data.shape for k, v in arrays.items()})

whole = process_allgather(probabilities, tiled=True)
if host == 0:
    np.save(out, whole)
