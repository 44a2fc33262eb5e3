"""Twenty documents with the slips that people make, for docs/errors.md and its test."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

import nnef_jax
from tests.helpers import archive


@dataclass(frozen=True)
class WrongDocument:
    """A document that nnef_jax refuses.

    `mistake` is what its author got wrong; `words` are what the message must contain to be enough
    to mend it. `tensors` are the shapes of the .dat files beside the text, by label. `call` is the
    expression that fails where `model` is what was loaded; without it, loading fails.
    """

    name: str
    mistake: str
    text: str
    words: Sequence[str]
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    call: str = ""


def message(document: WrongDocument) -> str:
    """What nnef_jax says of a document; ValueError where it finds nothing wrong."""
    members: dict[str, bytes | str] = {"graph": document.text}
    for label, shape in document.tensors.items():
        file = io.BytesIO()
        nnef_jax.write_tensor(file, np.zeros(shape, np.float32))
        members[label] = file.getvalue()
    source = io.BytesIO(archive(**members))
    source.name = "net"
    try:
        model = nnef_jax.load(source)
        if document.call:
            eval(document.call, {"model": model, "np": np})
    except nnef_jax.NnefError as error:
        return str(error)
    raise ValueError(f"nothing is wrong with '{document.name}'")


def _flat(inputs: str, *lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"version 1.0;\n\ngraph net( {inputs} ) -> ( y )\n{{\n{body}\n}}\n"


_EXTENSIONS = (
    "version 1.0;\nextension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;\n\n"
)

_SYNTAX = [
    WrongDocument(
        "missing_semicolon",
        "A statement does not end in a semicolon.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "h = relu(x)",
            "y = softmax(h);",
        ),
        ["net/graph.nnef:7:5", "unexpected 'y'", "a semicolon may be missing before this"],
    ),
    WrongDocument(
        "colon_for_equals",
        "An argument is named with a colon, as in Swift or a Python dictionary.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "y = softmax(x, axes: [1]);",
        ),
        ["net/graph.nnef:6:24", "unexpected ':'", "write a single '='", "to name an argument"],
    ),
    WrongDocument(
        "expression_in_a_flat_graph",
        "The graph uses operators, which are an extension of the flat language.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "y = x / 127.5 - 1.0;",
        ),
        [
            "net/graph.nnef:6:",
            "an expression is not allowed here",
            "write 'extension KHR_enable_operator_expressions;' after the version",
        ],
    ),
    WrongDocument(
        "provisional_types",
        "The types of a fragment are written as in NNEF 1.0 provisional.",
        _EXTENSIONS
        + """fragment flatten( x: tensor, count: extent ) -> ( y: tensor )
{
    y = reshape(x, shape = [0,count]);
}

graph net( x ) -> ( y )
{
    x = external(shape = [1,3,32,32]);
    y = flatten(x, count = 3072);
}
""",
        [
            "net/graph.nnef:4:22",
            "'tensor' without an item type is not part of NNEF 1.0 final",
            "write 'tensor<scalar>'",
            "type 'extent' is not part of NNEF 1.0 final",
            "write 'integer'",
        ],
    ),
]

_NAMES = [
    WrongDocument(
        "unknown_operation",
        "The operation has another name than in other frameworks.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "y = maxpool(x, size = [1,1,2,2]);",
        ),
        ["net/graph.nnef:6:9", "unknown operation 'maxpool'", "did you mean 'max_pool'"],
    ),
    WrongDocument(
        "misspelt_attribute",
        "An attribute is misspelt.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "y = max_pool(x, size = [1,1,2,2], strides = [1,1,2,2]);",
        ),
        [
            "net/graph.nnef:6:39",
            "'max_pool' has no parameter 'strides'",
            "its parameters are input, size, border, padding, stride, dilation",
        ],
    ),
    WrongDocument(
        "used_before_assigned",
        "A name is used above the line that assigns it.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "y = softmax(h);",
            "h = relu(x);",
        ),
        ["net/graph.nnef:6:17", "'h' is not defined here", "must be assigned before it is used"],
    ),
    WrongDocument(
        "assigned_twice",
        "A name is assigned a second time, as a variable of a program would be.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "h = relu(x);",
            "h = max_pool(h, size = [1,1,2,2]);",
            "y = softmax(h);",
        ),
        ["net/graph.nnef:7:5", "'h' is already assigned", "use another name"],
    ),
]

_ARGUMENTS = [
    WrongDocument(
        "attribute_by_position",
        "An attribute is given by position; only tensors may be.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "y = avg_pool(x, [1,1,2,2]);",
        ),
        [
            "net/graph.nnef:6:21",
            "'size' of 'avg_pool' is an attribute: it must be named",
            "write size = ...",
        ],
    ),
    WrongDocument(
        "integer_for_scalar",
        "Integers stand where scalars are due; all such places are reported at once.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "y = clamp(x, 0, 6);",
        ),
        [
            "net/graph.nnef:6:18",
            "net/graph.nnef:6:21",
            "'b' of 'clamp' must be of type tensor<scalar>, this is integer",
            "write the number with a point, as in 2.0",
        ],
    ),
    WrongDocument(
        "two_results_to_one_name",
        "An operation with two results is assigned to a single name.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "y = moments(x, axes = [0,2,3]);",
        ),
        ["net/graph.nnef:6:5", "(tensor<scalar>,tensor<scalar>)", "unpack tuples as (a, b) = ..."],
    ),
    WrongDocument(
        "negative_axis",
        "An axis is counted from the end, as in numpy.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "y = softmax(x, axes = [-1]);",
        ),
        ["net/graph.nnef:6:9", "'axes' must lie in [0,4), it has -1", "the last one is 3"],
    ),
]

_SHAPES = [
    WrongDocument(
        "bias_of_rank_1",
        "A bias has the shape [C], as in numpy; NNEF matches shapes from the left, so it is [1,C].",
        _EXTENSIONS
        + """fragment conv_relu( x: tensor<scalar>, scope: string ) -> ( y: tensor<scalar> )
{
    filter = variable(shape = [8,3,3,3], label = scope + '/filter');
    bias = variable(shape = [8], label = scope + '/bias');
    y = relu(conv(x, filter, bias));
}

graph net( x ) -> ( y )
{
    x = external(shape = [1,3,32,32]);
    y = conv_relu(x, scope = 'conv1');
}
""",
        [
            "net/graph.nnef:8:14",
            "'bias' [8] does not fit 8 output channels",
            "in fragment 'conv_relu', called at net/graph.nnef:14:9",
            "the shape [1,8]",
        ],
    ),
    WrongDocument(
        "filter_of_another_framework",
        "The filter is laid out as TensorFlow does: height, width, input and output channels.",
        _EXTENSIONS
        + """fragment block( x: tensor<scalar>, scope: string ) -> ( y: tensor<scalar> )
{
    filter = variable(shape = [3,3,16,32], label = scope + '/filter');
    y = relu(conv(x, filter));
}

graph net( x ) -> ( y )
{
    x = external(shape = [1,16,32,32]);
    y = block(x, scope = 'block1');
}
""",
        [
            "net/graph.nnef:7:14",
            "'filter' [3,3,16,32] takes 3 channels in 1 group(s), 'input' [1,16,32,32] has 16",
            "in fragment 'block', called at net/graph.nnef:13:9",
            "[output channels, input channels / groups, ...]",
        ],
    ),
    WrongDocument(
        "transposed_matrix",
        "The filter of `linear` is transposed, two fragments deep.",
        _EXTENSIONS
        + """fragment dense( x: tensor<scalar>, n: integer, m: integer ) -> ( y: tensor<scalar> )
{
    filter = variable(shape = [n,m], label = 'dense/filter');
    y = linear(x, filter);
}

fragment classifier( x: tensor<scalar> ) -> ( y: tensor<scalar> )
{
    y = softmax(dense(reshape(x, shape = [0,-1]), n = 3072, m = 10));
}

graph net( x ) -> ( y )
{
    x = external(shape = [1,3,32,32]);
    y = classifier(x);
}
""",
        [
            "net/graph.nnef:7:9",
            "the columns of 'input' must be as many as the rows of 'filter'",
            "[1,3072] and [10,3072]",
            "in fragment 'dense', called at net/graph.nnef:12:17",
            "in fragment 'classifier', called at net/graph.nnef:18:9",
            "'filter' has the shape [output channels, input channels]",
        ],
    ),
    WrongDocument(
        "shortcut_past_a_stride",
        "A shortcut goes past a convolution that halves the image; one of two calls is wrong.",
        _EXTENSIONS
        + """fragment residual( x: tensor<scalar>, stride: integer, scope: string )
-> ( y: tensor<scalar> )
{
    filter = variable(shape = [16,16,3,3], label = scope + '/filter');
    y = relu(x + conv(x, filter, stride = [stride,stride]));
}

graph net( x ) -> ( y )
{
    x = external(shape = [1,16,32,32]);
    h = residual(x, stride = 1, scope = 'block1');
    y = residual(h, stride = 2, scope = 'block2');
}
""",
        [
            "net/graph.nnef:8:16",
            "shapes [1,16,32,32] and [1,16,16,16] do not broadcast",
            "extents 32 and 16 at axis 2",
            "in fragment 'residual', called at net/graph.nnef:15:9",
            "extents must be equal, or 1",
        ],
    ),
    WrongDocument(
        "window_without_batch_and_channel",
        "The window of a pool has its height and width only, as that of a convolution.",
        _EXTENSIONS
        + """fragment halved( x: tensor<scalar> ) -> ( y: tensor<scalar> )
{
    y = max_pool(x, size = [2,2], stride = [2,2], padding = [(0,0),(0,0)]);
}

graph net( x ) -> ( y )
{
    x = external(shape = [1,16,32,32]);
    y = halved(x);
}
""",
        [
            "net/graph.nnef:6:9",
            "the window spans 2 items at axis 0",
            "in fragment 'halved', called at net/graph.nnef:12:9",
            "begin with batch and channel, as in [1,1,2,2]",
        ],
    ),
]

_DATA = [
    WrongDocument(
        "missing_tensor_file",
        "The file of a variable has another name than its label.",
        _flat(
            "x",
            "x = external(shape = [1,3,32,32]);",
            "f = variable(shape = [8,3,3,3], label = 'conv1/weights');",
            "y = conv(x, f);",
        ),
        [
            "net/graph.nnef:6:9",
            "net has no member 'conv1/weights.dat' for the variable 'conv1/weights'",
            "correct the label, or add the file",
        ],
        tensors={"conv1/filter": (8, 3, 3, 3)},
    ),
    WrongDocument(
        "tensor_file_of_another_shape",
        "The file of a variable holds a transposed tensor.",
        _flat(
            "x",
            "x = external(shape = [1,256]);",
            "f = variable(shape = [10,256], label = 'dense/filter');",
            "y = linear(x, f);",
        ),
        [
            "net/graph.nnef:6:9",
            "dense/filter.dat has shape [256,10]",
            "is declared with [10,256]",
            "store a tensor of the declared shape",
        ],
        tensors={"dense/filter": (256, 10)},
    ),
    WrongDocument(
        "channels_last",
        "The network loads; it is called with an image whose channels come last.",
        _flat(
            "image",
            "image = external(shape = [1,3,224,224]);",
            "y = area_downsample(image, factor = [2,2]);",
        ),
        [
            "net/graph.nnef:5:5",
            "input 'image' has shape [1,224,224,3], the graph declares [1,3,224,224]",
            "transpose it",
        ],
        call="model(np.zeros([1, 224, 224, 3], np.float32))",
    ),
]

SECTIONS = {
    "Syntax": _SYNTAX,
    "Names": _NAMES,
    "Arguments": _ARGUMENTS,
    "Shapes, inside fragments": _SHAPES,
    "Data": _DATA,
}
WRONG_DOCUMENTS = tuple(document for section in SECTIONS.values() for document in section)
