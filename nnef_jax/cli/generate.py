"""The command `nnef-jax generate`, which continues a text by a language model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nnef_jax.cli import command_options as option
from nnef_jax.cli.commands import app
from nnef_jax.cli.terminal import print_piece, print_result, report_line, status

if TYPE_CHECKING:
    from nnef_jax.generation import Decoder, Sampling
    from nnef_jax.generation.companion_files import CompanionFiles
    from nnef_jax.generation.tokenizing import TextTokenizer

# A cache has at least 256 places, so that short prompts of different lengths share compiled
# programs.
_FEWEST_PLACES = 256


@dataclass(frozen=True, slots=True)
class Prompt:
    """The options that give a prompt, as a text or as token numbers."""

    prompt: Annotated[
        str | None,
        typer.Option(help="The text to continue; - reads it from the standard input."),
    ] = None
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="The prompt as token numbers, comma-separated, as 1,15043. Generated tokens are "
            "printed as numbers, and no tokenizer is needed.",
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The tokenizer.json, or its folder; by default the one beside the network.",
            show_default=False,
        ),
    ] = None
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="The prompt is a message, for the chat template beside the network."
        ),
    ] = False
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --chat: the system's message.")
    ] = None
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt first.")] = False

    def check(self) -> None:
        """Raise BadParameter for options that do not go together."""
        if (self.prompt is None) == (self.tokens is None):
            message = "give either --prompt TEXT or --tokens NUMBERS"
            raise typer.BadParameter(message, param_hint="--prompt")
        for name, is_set in (("--tokenizer", self.tokenizer), ("--chat", self.chat)):
            if is_set and self.tokens is not None:
                raise typer.BadParameter("does not go with --tokens", param_hint=name)
        if self.system is not None and not self.chat:
            raise typer.BadParameter("needs --chat", param_hint="--system")

    def text(self) -> str:
        """Return the text of the prompt, from the standard input if it is "-"."""
        return sys.stdin.read() if self.prompt == "-" else self.prompt or ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """The options that say how the next token is chosen."""

    temperature: Annotated[
        float, typer.Option(min=0, help="Divide logits by this; 0 takes the most probable token.")
    ] = 0.0
    top_k: Annotated[
        int, typer.Option(min=0, help="Draw one of this many most probable tokens; 0: of all.")
    ] = 0
    top_p: Annotated[
        float, typer.Option(help="Draw one of the most probable tokens with this probability.")
    ] = 1.0
    repetition_penalty: Annotated[
        float, typer.Option(help="Make tokens that are in the text less probable; 1 for none.")
    ] = 1.0
    seed: Annotated[int, typer.Option(help="The seed of random numbers.")] = 0
    beams: Annotated[
        int, typer.Option(min=1, help="Search for the most probable text with this many beams.")
    ] = 1

    def check(self) -> None:
        """Raise BadParameter for options that do not go together."""
        is_greedy = not self.temperature and self.repetition_penalty == 1
        if self.beams > 1 and not is_greedy:
            message = "does not go with --temperature and --repetition-penalty"
            raise typer.BadParameter(message, param_hint="--beams")
        if not self.temperature and (self.top_k or self.top_p != 1):
            message = "--top-k and --top-p need a temperature, such as 0.8"
            raise typer.BadParameter(message, param_hint="--temperature")

    def sampling(self) -> Sampling:
        """Return the options as `Sampling`. Raises InputError for numbers beyond their range."""
        from nnef_jax.generation import Sampling

        return Sampling(self.temperature, self.top_k, self.top_p, self.repetition_penalty)


@app.command()
@option.grouped
def generate(
    source: option.Source,
    prompt: Prompt = Prompt(),
    steps: Annotated[int, typer.Option(min=1, help="The most tokens to generate.")] = 128,
    drawing: Drawing = Drawing(),
    stop: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Tokens that end the text, comma-separated, or 'none'; by default those of the "
            "configuration beside the network.",
            show_default=False,
        ),
    ] = None,
    places: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="The positions of a cache; by default a power of two, for the prompt and --steps.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(help="The type of real numbers in computations."),
    ] = "float32",
    reading: option.Reading = option.Reading(),
    cache_dir: option.CacheDir = None,
    no_cache: option.NoCache = False,
) -> None:
    """Continue a text by a language model.

    Tokens are printed as they come. The network takes tokens and caches of keys and values, as
    docs/language_models.md says. The speed is printed to the standard error.
    """
    prompt.check()
    drawing.check()
    sample = drawing.sampling()
    stops = None if stop is None else _numbers(stop, "--stop")
    from nnef_jax.generation.companion_files import CompanionFiles

    companions = CompanionFiles(source, prompt.tokenizer)
    tokenizer = None
    if prompt.tokens is not None:
        tokens = _numbers(prompt.tokens, "--tokens")
    else:
        tokenizer, tokens = _encoded(prompt, companions)
    with option.caching(cache_dir, no_cache) as folder:
        model = reading.load(source, dtype=dtype, cache_dir=folder, measure=bool(folder))
        import nnef_jax

        decoder = nnef_jax.decoder(model, places or _places(len(tokens) + steps))
        _require_fit(decoder, tokens, steps, tokenizer)
        if stops is None:
            stops = _stops(companions, tokenizer)
        with ExitStack() as compiling:
            compiling.enter_context(status("compiling"))
            generated = _generated(decoder, tokens, steps, drawing, sample, stops)
            _print(generated, compiling, prompt, tokens, tokenizer, stops)


def _numbers(text: str, name: str) -> list[int]:
    """Return the numbers in the text of an option. The text "none" has no numbers."""
    words = [] if text == "none" else [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() for word in words):
        message = f"{text!r:.60} is not a list of numbers such as 1,15043"
        raise typer.BadParameter(message, param_hint=name)
    return [int(word) for word in words]


def _encoded(prompt: Prompt, companions: CompanionFiles) -> tuple[TextTokenizer, list[int]]:
    """Return the tokenizer, and the tokens of the prompt.

    Raises InputError if there is no tokenizer or chat template.
    """
    from nnef_jax.generation.chat_template import rendered
    from nnef_jax.generation.tokenizing import TextTokenizer

    tokenizer = TextTokenizer(companions.tokenizer_path())
    if not prompt.chat:
        return tokenizer, tokenizer.encode(prompt.text())
    template, path = companions.chat_template()
    messages = [{"role": "user", "content": prompt.text()}]
    if prompt.system is not None:
        messages.insert(0, {"role": "system", "content": prompt.system})
    text = rendered(template, messages, companions.special_tokens(), str(path))
    # The text from the template contains the special tokens already.
    return tokenizer, tokenizer.encode(text, add_special=False)


def _places(needed: int) -> int:
    """Return a power of two that is at least `needed`."""
    return max(_FEWEST_PLACES, 1 << (needed - 1).bit_length())


def _require_fit(
    decoder: Decoder, tokens: Sequence[int], steps: int, tokenizer: TextTokenizer | None
) -> None:
    """Raise InputError if the network cannot continue the prompt, before anything is compiled."""
    from nnef_jax import InputError
    from nnef_jax.wording.similar import listed

    # Each token that the network reads takes a place. The network does not read the last token.
    needed = len(tokens) + steps - 1
    if needed > decoder.places:
        message = f"a prompt of {len(tokens)} tokens and {steps} further ones need {needed} places"
        raise InputError(message, hint=f"--places {needed}, or fewer --steps")
    if decoder.roles.context:
        names = listed(decoder.roles.context)
        raise InputError(
            f"the network also takes {names}, which the command line cannot give",
            hint="in Python: nnef_jax.decoder(model).generate(tokens, steps, NAME=array)",
        )
    words = decoder.model.outputs[0].shape[-1]
    if tokenizer is not None and words is not None:
        tokenizer.require_words(words)


def _stops(companions: CompanionFiles, tokenizer: TextTokenizer | None) -> list[int]:
    """Return the tokens that end a text, as the files beside the network name them."""
    stops = companions.stop()
    if not stops and tokenizer is not None:
        end = companions.special_tokens().get("eos_token")
        token = None if end is None else tokenizer.token(end)
        stops = [] if token is None else [token]
    return stops


def _generated(
    decoder: Decoder, tokens: Sequence[int], steps: int, drawing: Drawing, sample: Sampling,
    stops: Sequence[int],
) -> Iterator[int]:  # fmt: skip
    """Yield generated tokens, with the token that ends the text."""
    if drawing.beams > 1:
        best = decoder.search([*tokens], steps, beams=drawing.beams, stop=stops)
        yield from best.tokens[0, : best.lengths[0]].tolist()
        return
    for row in decoder.stream([*tokens], steps, sample=sample, key=drawing.seed, stop=stops):
        yield int(row[0])


def _print(
    generated: Iterator[int], compiling: ExitStack, prompt: Prompt, tokens: Sequence[int],
    tokenizer: TextTokenizer | None, stops: Sequence[int],
) -> None:  # fmt: skip
    """Print tokens as they come, and then the speed. `compiling` is closed at the first token."""
    from nnef_jax.generation.tokenizing import TextPieces

    pieces = None if tokenizer is None else TextPieces(tokenizer, tokens)
    begin = first = last = time.perf_counter()
    count = 0
    for token in generated:
        last = time.perf_counter()
        if not count:
            first = last
            compiling.close()
            if prompt.echo:
                print_piece(_echoed(tokenizer, tokens))
        count += 1
        if pieces is None:
            print_piece(f"{token} ")
        elif token not in stops:
            print_piece(pieces.add(token))
    print_result(pieces.end() if pieces else "")
    rate = f", then {(count - 1) / (last - first):.1f} tokens/s" if last > first else ""
    report_line(f"{count} tokens: the first after {first - begin:.1f} s{rate}")


def _echoed(tokenizer: TextTokenizer | None, tokens: Sequence[int]) -> str:
    if tokenizer is None:
        return "".join(f"{token} " for token in tokens)
    return tokenizer.decode(tokens)
