"""Continue sequences of letters by a language model in OpenVINO's format, with a cache.

    python examples/decode.py [PROMPT ...]

The cache of keys and values grows from call to call, so a step must be compiled for each length of
the cache. Alternatively, a cache of fixed size keeps a window of the last positions. With it, all
steps are computed by one `lax.scan`. Both ways give the same letters as the network without a
cache, which reads all letters again for each new letter. tests/openvino/decoder.py trained the
network.
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
LONGEST = 24  # the most letters of a sequence


def inputs(ids: jax.Array, before: int) -> dict[str, jax.Array]:
    """Return the inputs of a call for letters (batch, time) that follow `before` other letters."""
    batch, times = ids.shape
    return {
        "input_ids": ids,
        "attention_mask": jnp.ones((batch, before + times), jnp.int32),
        "position_ids": jnp.broadcast_to(before + jnp.arange(times), ids.shape),
        "beam_idx": jnp.arange(batch),
    }


def anew(model: nnef_jax.Model, ids: jax.Array, count: int) -> jax.Array:
    """Continue sequences without a cache: all letters are read again for each letter that is added.

    The sequences are padded to their final length. The network does not attend to letters after the
    current one.
    """
    length = ids.shape[1]
    ids = jnp.pad(ids, ((0, 0), (0, count)))
    for i in range(length, length + count):
        ids = ids.at[:, i].set(model(**inputs(ids, 0))[:, i - 1].argmax(-1))
    return ids


def step_by_step(model: nnef_jax.Model, ids: jax.Array, count: int) -> jax.Array:
    """Continue sequences with a growing cache: read the prompt, and then one letter at a time."""
    state = model.init_state(**inputs(ids, 0))
    new = ids
    for _ in range(count):
        logits, state = model.step(state, **inputs(new, ids.shape[1] - new.shape[1]))
        new = logits[:, -1:].argmax(-1)
        ids = jnp.concatenate([ids, new], 1)
    return ids


@partial(jax.jit, static_argnames="count")
def in_a_window(model: nnef_jax.Model, ids: jax.Array, count: int) -> jax.Array:
    """Continue sequences with a cache of fixed size: read the prompt, then letters in a loop.

    The cache is zeros at first. The attention mask hides its empty positions, so they have no
    effect.
    """
    batch, length = ids.shape
    window = length + count

    def read(state: Any, new: jax.Array, before: Any) -> Any:
        """Read the letters `new`. Return the next letter, and the cache extended by `new`."""
        times = new.shape[1]
        given = inputs(new, 0)
        place = jnp.arange(window + times) - window + before  # of each key; negative if it is empty
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
    """Continue each prompt in three ways, and check that their results agree."""
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
        for _ in range(2):  # the first call compiles
            begun = time.perf_counter()
            found.append(np.asarray(way(model, ids, count)))
            seconds.append(time.perf_counter() - begun)
        print(f"{way.__name__:13} {seconds[0]:6.2f} s, then {1e3 * seconds[1]:6.1f} ms")
    assert all((x == found[0]).all() for x in found), "a cache has changed what is said"
    words = ["".join(chr(ord("a") + i) for i in row) for row in found[0]]
    print(", ".join(words))


if __name__ == "__main__":
    main()
