"""Continue sequences of letters with a language model of OpenVINO and its cache.

    python examples/decode.py [PROMPT ...]

The cache of keys and values grows from call to call, and a step is compiled for each length. A
cache of fixed size is a window that moves on: it is the state of one `lax.scan`. Both give the
letters that the network gives without a cache, reading all of them anew each time.
tests/openvino/decoder.py has trained it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nnef_jax

DECODER = Path(__file__).parent / "decoder" / "decoder.xml"
LONGEST = 24  # letters that the network has places for


def inputs(ids: jax.Array, before: int) -> dict[str, jax.Array]:
    """Return what a call takes for letters [batch,time] behind so many."""
    batch, times = ids.shape
    return {
        "input_ids": ids,
        "attention_mask": jnp.ones((batch, before + times), jnp.int32),
        "position_ids": jnp.broadcast_to(before + jnp.arange(times), ids.shape),
        "beam_idx": jnp.arange(batch),
    }


def anew(model: nnef_jax.Model, ids: jax.Array, count: int) -> jax.Array:
    """Read all letters anew for each one that is added: no cache. Those behind are not seen."""
    length = ids.shape[1]
    ids = jnp.pad(ids, ((0, 0), (0, count)))
    for i in range(length, length + count):
        ids = ids.at[:, i].set(model(**inputs(ids, 0))[:, i - 1].argmax(-1))
    return ids


def step_by_step(model: nnef_jax.Model, ids: jax.Array, count: int) -> jax.Array:
    """Read the prompt, then a letter at a time: the cache grows."""
    state = model.init_state(**inputs(ids, 0))
    new = ids
    for _ in range(count):
        logits, state = model.step(state, **inputs(new, ids.shape[1] - new.shape[1]))
        new = logits[:, -1:].argmax(-1)
        ids = jnp.concatenate([ids, new], 1)
    return ids


@partial(jax.jit, static_argnames="count")
def in_a_window(model: nnef_jax.Model, ids: jax.Array, count: int) -> jax.Array:
    """Read the prompt, then a letter at a time in one loop, with a cache of fixed size.

    What the mask leaves out has no part in the result: the cache begins with nothing there.
    """
    batch, length = ids.shape
    window = length + count

    def read(state: Any, new: jax.Array, before: Any) -> Any:
        """Return the next letter, and the cache moved on by those that were read."""
        times = new.shape[1]
        given = inputs(new, 0)
        place = jnp.arange(window + times) - window + before  # of each key, below 0 for none
        given["attention_mask"] = jnp.broadcast_to(place >= 0, (batch, window + times)).astype(int)
        given["position_ids"] = given["position_ids"] + before
        logits, state = model.step(state, **given)
        return logits[:, -1:].argmax(-1), {x: v[:, :, -window:] for x, v in state.items()}

    empty = model.init_state(**inputs(ids, 0))
    whole = {x: jnp.zeros((*v.shape[:2], window, *v.shape[3:]), v.dtype) for x, v in empty.items()}
    new, state = read(whole, ids, 0)

    def turn(carry: Any, before: jax.Array) -> Any:
        new, state = carry
        return read(state, new, before), new[:, 0]

    (last, _), added = jax.lax.scan(turn, (new, state), length + jnp.arange(count - 1))
    return jnp.concatenate([ids, added.T, last], 1)


def main(argv: Sequence[str] | None = None) -> None:
    """Continue each prompt in three ways, which agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("prompts", nargs="*", default=["ace", "zyx", "mpq"], metavar="PROMPT")
    prompts = parser.parse_args(argv).prompts
    sizes = {len(prompt) for prompt in prompts}
    if len(sizes) > 1 or not all("a" <= letter <= "z" for letter in "".join(prompts)):
        parser.error("prompts are letters from a to z, as many in each")
    if not 1 <= min(sizes) <= LONGEST - 2:
        parser.error(f"a prompt has 1 to {LONGEST - 2} letters")
    model = nnef_jax.load(DECODER)
    ids = jnp.asarray([[ord(letter) - ord("a") for letter in prompt] for prompt in prompts])
    count = min(6, LONGEST - ids.shape[1])
    found = []
    for way in (anew, step_by_step, in_a_window):
        seconds = []
        for _ in range(2):  # what compiles, and what is compiled
            begun = time.perf_counter()
            found.append(np.asarray(way(model, ids, count)))
            seconds.append(time.perf_counter() - begun)
        print(f"{way.__name__:13} {seconds[0]:6.2f} s, then {1e3 * seconds[1]:6.1f} ms")
    assert all((x == found[0]).all() for x in found), "a cache has changed what is said"
    words = ["".join(chr(ord("a") + i) for i in row) for row in found[0]]
    print(", ".join(words))


if __name__ == "__main__":
    main()
