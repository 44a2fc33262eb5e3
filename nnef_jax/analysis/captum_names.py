"""The names of captum's functions and options in this package, for hints in errors."""

from __future__ import annotations

from collections.abc import Iterable

KEYWORDS = {
    "baselines": "baseline=",
    "feature_mask": "mask=",
    "layer": "wrt=",
    "multiply_by_inputs": "times_input=",
    "n_perturb_samples": "samples=",
    "n_samples": "samples=, or sampled=(key, number)",
    "n_steps": "steps=",
    "nt_samples": "samples=",
    "nt_type": "kind=",
    "perturb_radius": "radius=",
    "sliding_window_shapes": "window=",
    "stdevs": "noise=",
    "strides": "stride=",
}
NT_TYPES = {"smoothgrad": "mean", "smoothgrad_sq": "square", "vargrad": "variance"}
_CALLS = {
    "InputXGradient": "saliency(..., times_input=True)",
    "LayerActivation": "model.intermediates(...)",
    "LayerGradCam": "grad_cam(..., layer=)",
    "LayerGradientXActivation": "saliency(..., wrt=, times_input=True)",
    "NeuronGradient": "saliency(..., output=, target=unit)",
    "ShapleyValueSampling": "shapley_values(..., sampled=)",
    "TracInCP": "tracin(...)",
    "sensitivity_max": "max_sensitivity(...)",
}


def call_for(name: str, functions: Iterable[str]) -> str:
    """Return the call in this package that replaces a class or function of captum, or "".

    For example, `deep_lift(..., wrt=)` replaces `LayerDeepLift`. Most names of captum differ from
    names in this package only in spelling and in a prefix.

    Args:
        name: the name of captum's class or function.
        functions: the names of this package's functions.
    """
    if name in _CALLS:
        return _CALLS[name]
    function_by_spelling = {function.replace("_", ""): function for function in functions}
    spelling = name.replace("_", "").lower()
    keywords_by_prefix = {"": "", "layer": ", wrt=", "neuron": ", output=, target=unit"}
    for prefix, keywords in keywords_by_prefix.items():
        if not spelling.startswith(prefix):
            continue
        function = function_by_spelling.get(spelling.removeprefix(prefix))
        if function:
            return f"{function}(...{keywords})"
    return ""
