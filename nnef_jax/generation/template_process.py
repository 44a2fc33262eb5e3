"""The script that renders a chat template, in a process of its own whose resources are limited.

The module `chat_template` runs the script with three arguments: limits for the seconds of processor
time, for the bytes of memory, and for the bytes of the result. The standard input has a JSON object
with the template and its variables. The script writes the result to its standard output. On
failure it writes the reason to its standard error, and exits with the status `FAULTY` or `TOO_BIG`.
"""

from __future__ import annotations

import json
import sys
import traceback
from datetime import datetime
from importlib import import_module
from typing import Any

try:
    import resource
except ImportError:  # Windows has no such module, so only the time and the result are limited there
    resource = None

FAULTY, TOO_BIG = 3, 4


def main(seconds: int, memory: int, most: int) -> None:
    """Render the template in the standard input to the standard output.

    Args:
        seconds: limits the processor time.
        memory: limits the bytes of memory.
        most: limits the bytes of the result.
    """
    if resource is not None:
        # The system enforces these limits even within a single operation on large numbers.
        for limit, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_DATA, memory),
            # The text is counted below. This limit is larger, so that the count decides.
            (resource.RLIMIT_FSIZE, most + (1 << 16)),
        ):
            _bound(limit, value)
    request = json.loads(sys.stdin.buffer.read())
    size = 0
    try:
        template = _environment().from_string(request["template"])
        for piece in template.generate(request["variables"]):
            data = piece.encode("utf-8", "replace")
            size += len(data)
            if size > most:
                _end(TOO_BIG, f"the text has more than {most} bytes")
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except MemoryError:
        _end(TOO_BIG, f"it takes more than {memory} bytes of memory")
    except RecursionError:
        _end(TOO_BIG, "it is nested too deeply")
    except Exception as error:
        _end(FAULTY, f"{_line_of(error)}{error or type(error).__name__}")


def _environment() -> Any:
    """Return jinja2's environment for chat templates, which are written for transformers."""
    sandbox: Any = import_module("jinja2.sandbox")
    extension: Any = import_module("jinja2.ext")

    class Generation(extension.Extension):
        """The tag `generation`, which marks the model's answers. It changes no text."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            next(parser.stream)  # the tag
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, extension.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
    sort_keys: bool = False,
) -> str:  # fmt: skip
    """Return `x` as JSON: the filter `tojson` of transformers.

    jinja2 has a filter of this name too, which escapes the characters of HTML.
    """
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise ValueError(message)


def _line_of(error: Exception) -> str:
    """Return the line of the template that raised an error, such as "line 3: ", or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [x.lineno for x in frames if x.filename in ("<template>", "<unknown>")]
    # An error of syntax has the line as an attribute. Other errors have it in the traceback.
    line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
    return f"line {line}: " if line else ""


def _bound(limit: int, value: int) -> None:
    """Lower a resource limit of this process, such as `resource.RLIMIT_DATA`, to `value`."""
    assert resource is not None
    _, most = resource.getrlimit(limit)  # a negative number is "no limit"
    # At the soft limit of processor time the process ends by the signal SIGXCPU, which names the
    # reason. At the hard limit it ends by SIGKILL. So the soft limit must be reached first.
    soft, hard = (min(x, most) if most >= 0 else x for x in (value, value + 1))
    resource.setrlimit(limit, (soft, hard))


def _end(status: int, reason: str) -> None:
    sys.stderr.write(reason[:1000])
    sys.exit(status)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
