"""Twenty documents with the slips that people make, for docs/errors.md and its test."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

import nnef_jax
from tests.helpers import COMPOSITIONAL, archive


@dataclass(frozen=True)
class WrongDocument:
    """A document that nnef_jax refuses.

    `mistake` is the error of its author; `words` are what the message must contain to be enough
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
    """Return the message of nnef_jax for a document; ValueError if there is none."""
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


# By section: `#` its name, what the author got wrong, fragments, indented statements of the graph,
# `@` the shape of a .dat file by its label, `!` a call, `=` words of the message.
_DOCUMENTS = """
## Syntax
# missing_semicolon
A statement does not end in a semicolon.
    x = external(shape = [1,3,32,32]);
    h = relu(x)
    y = softmax(h);
= net/graph.nnef:7:5
= unexpected 'y'
= a semicolon may be missing before this
# colon_for_equals
An argument is named with a colon, as in Swift or a Python dictionary.
    x = external(shape = [1,3,32,32]);
    y = softmax(x, axes: [1]);
= net/graph.nnef:6:24
= unexpected ':'
= write a single '='
= to name an argument
# expression_in_a_flat_graph
The graph uses operators, which are an extension of the flat language.
    x = external(shape = [1,3,32,32]);
    y = x / 127.5 - 1.0;
= net/graph.nnef:6:
= an expression is not allowed here
= write 'extension KHR_enable_operator_expressions;' after the version
# provisional_types
The types of a fragment are written as in NNEF 1.0 provisional.
fragment flatten( x: tensor, count: extent ) -> ( y: tensor )
{
    y = reshape(x, shape = [0,count]);
}
    x = external(shape = [1,3,32,32]);
    y = flatten(x, count = 3072);
= net/graph.nnef:4:22
= 'tensor' without an item type is not part of NNEF 1.0 final
= write 'tensor<scalar>'
= type 'extent' is not part of NNEF 1.0 final
= write 'integer'
## Names
# unknown_operation
The operation has another name than in other frameworks.
    x = external(shape = [1,3,32,32]);
    y = maxpool(x, size = [1,1,2,2]);
= net/graph.nnef:6:9
= unknown operation 'maxpool'
= did you mean 'max_pool'
# misspelt_attribute
An attribute is misspelt.
    x = external(shape = [1,3,32,32]);
    y = max_pool(x, size = [1,1,2,2], strides = [1,1,2,2]);
= net/graph.nnef:6:39
= 'max_pool' has no parameter 'strides'
= its parameters are input, size, border, padding, stride, dilation
# used_before_assigned
A name is used above the line that assigns it.
    x = external(shape = [1,3,32,32]);
    y = softmax(h);
    h = relu(x);
= net/graph.nnef:6:17
= 'h' is not defined here
= must be assigned before it is used
# assigned_twice
A name is assigned a second time, as is possible in a program.
    x = external(shape = [1,3,32,32]);
    h = relu(x);
    h = max_pool(h, size = [1,1,2,2]);
    y = softmax(h);
= net/graph.nnef:7:5
= 'h' is already assigned
= use another name
## Arguments
# attribute_by_position
An attribute is given by position; only tensors may be given by position.
    x = external(shape = [1,3,32,32]);
    y = avg_pool(x, [1,1,2,2]);
= net/graph.nnef:6:21
= 'size' of 'avg_pool' is an attribute: it must be named
= write size = ...
# integer_for_scalar
Integers are passed for parameters that need scalars; all such integers are reported at once.
    x = external(shape = [1,3,32,32]);
    y = clamp(x, 0, 6);
= net/graph.nnef:6:18
= net/graph.nnef:6:21
= 'b' of 'clamp' must be of type tensor<scalar>, this is integer
= write the number with a point, as in 2.0
# two_results_to_one_name
An operation with two results is assigned to a single name.
    x = external(shape = [1,3,32,32]);
    y = moments(x, axes = [0,2,3]);
= net/graph.nnef:6:5
= (tensor<scalar>,tensor<scalar>)
= unpack tuples as (a, b) = ...
# negative_axis
An axis is counted from the end, as in numpy.
    x = external(shape = [1,3,32,32]);
    y = softmax(x, axes = [-1]);
= net/graph.nnef:6:9
= 'axes' must lie in [0,4), it has -1
= the last one is 3
## Shapes, inside fragments
# bias_of_rank_1
A bias has the shape [C], as in numpy; NNEF aligns shapes at the left, so [1,C] is needed.
fragment conv_relu( x: tensor<scalar>, scope: string ) -> ( y: tensor<scalar> )
{
    filter = variable(shape = [8,3,3,3], label = scope + '/filter');
    bias = variable(shape = [8], label = scope + '/bias');
    y = relu(conv(x, filter, bias));
}
    x = external(shape = [1,3,32,32]);
    y = conv_relu(x, scope = 'conv1');
= net/graph.nnef:8:14
= 'bias' [8] does not fit 8 output channels
= in fragment 'conv_relu', called at net/graph.nnef:14:9
= the shape [1,8]
# filter_of_another_framework
The filter has the layout of TensorFlow: height, width, input and output channels.
fragment block( x: tensor<scalar>, scope: string ) -> ( y: tensor<scalar> )
{
    filter = variable(shape = [3,3,16,32], label = scope + '/filter');
    y = relu(conv(x, filter));
}
    x = external(shape = [1,16,32,32]);
    y = block(x, scope = 'block1');
= net/graph.nnef:7:14
= 'filter' [3,3,16,32] takes 3 channels in 1 group(s), 'input' [1,16,32,32] has 16
= in fragment 'block', called at net/graph.nnef:13:9
= [output channels, input channels / groups, ...]
# transposed_matrix
The filter of `linear` is transposed, in a fragment that another fragment calls.
fragment dense( x: tensor<scalar>, n: integer, m: integer ) -> ( y: tensor<scalar> )
{
    filter = variable(shape = [n,m], label = 'dense/filter');
    y = linear(x, filter);
}

fragment classifier( x: tensor<scalar> ) -> ( y: tensor<scalar> )
{
    y = softmax(dense(reshape(x, shape = [0,-1]), n = 3072, m = 10));
}
    x = external(shape = [1,3,32,32]);
    y = classifier(x);
= net/graph.nnef:7:9
= the columns of 'input' must be as many as the rows of 'filter'
= [1,3072] and [10,3072]
= in fragment 'dense', called at net/graph.nnef:12:17
= in fragment 'classifier', called at net/graph.nnef:18:9
= 'filter' has the shape [output channels, input channels]
# shortcut_past_a_stride
The network adds a shortcut to the result of a convolution that halves the image.
fragment residual( x: tensor<scalar>, stride: integer, scope: string )
-> ( y: tensor<scalar> )
{
    filter = variable(shape = [16,16,3,3], label = scope + '/filter');
    y = relu(x + conv(x, filter, stride = [stride,stride]));
}
    x = external(shape = [1,16,32,32]);
    h = residual(x, stride = 1, scope = 'block1');
    y = residual(h, stride = 2, scope = 'block2');
= net/graph.nnef:8:16
= shapes [1,16,32,32] and [1,16,16,16] do not broadcast
= extents 32 and 16 at axis 2
= in fragment 'residual', called at net/graph.nnef:15:9
= extents must be equal, or 1
# window_without_batch_and_channel
The window of a pool has only a height and a width, as the window of a convolution has.
fragment halved( x: tensor<scalar> ) -> ( y: tensor<scalar> )
{
    y = max_pool(x, size = [2,2], stride = [2,2], padding = [(0,0),(0,0)]);
}
    x = external(shape = [1,16,32,32]);
    y = halved(x);
= net/graph.nnef:6:9
= the window spans 2 items at axis 0
= in fragment 'halved', called at net/graph.nnef:12:9
= begin with batch and channel, as in [1,1,2,2]
## Data
# missing_tensor_file
The file of a variable has another name than its label.
    x = external(shape = [1,3,32,32]);
    f = variable(shape = [8,3,3,3], label = 'conv1/weights');
    y = conv(x, f);
@ conv1/filter [8, 3, 3, 3]
= net/graph.nnef:6:9
= net has no member 'conv1/weights.dat' for the variable 'conv1/weights'
= correct the label, or add the file
# tensor_file_of_another_shape
The file of a variable holds a transposed tensor.
    x = external(shape = [1,256]);
    f = variable(shape = [10,256], label = 'dense/filter');
    y = linear(x, f);
@ dense/filter [256, 10]
= net/graph.nnef:6:9
= dense/filter.dat has shape [256,10]
= is declared with [10,256]
= store a tensor of the declared shape
# channels_last
The network loads, but it is called with an image whose channels come last.
    image = external(shape = [1,3,224,224]);
    y = area_downsample(image, factor = [2,2]);
! model(np.zeros([1, 224, 224, 3], np.float32))
= net/graph.nnef:5:5
= input 'image' has shape [1,224,224,3], the graph declares [1,3,224,224]
= transpose it
"""


def _document(lines: list[str]) -> WrongDocument:
    """Return the document of these lines."""

    def those(mark: str) -> list[str]:
        return [line[2:] for line in lines if line.startswith(mark)]

    written = [line for line in lines[2:] if not re.match("[@!=] ", line)]
    last = max((i + 1 for i, line in enumerate(written) if not line.startswith(" ")), default=0)
    fragments, statements = "\n".join(written[:last]), "\n".join(written[last:])
    head = f"{COMPOSITIONAL}\n{fragments}\n\n" if last else "version 1.0;\n\n"
    name = statements.split()[0]
    text = f"{head}graph net( {name} ) -> ( y )\n{{\n{statements}\n}}\n"
    shapes = {
        label: tuple(json.loads(shape)) for label, shape in (x.split(" ", 1) for x in those("@"))
    }
    return WrongDocument(lines[0], lines[1], text, those("="), shapes, "".join(those("!")))


def _sections() -> dict[str, list[WrongDocument]]:
    sections = {}
    for section in re.split("^## ", _DOCUMENTS, flags=re.MULTILINE)[1:]:
        name, *documents = re.split("^# ", section, flags=re.MULTILINE)
        sections[name.strip()] = [_document(x.strip("\n").split("\n")) for x in documents]
    return sections


SECTIONS = _sections()
WRONG_DOCUMENTS = tuple(document for section in SECTIONS.values() for document in section)
