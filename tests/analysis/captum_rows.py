"""Compares each method of captum with ours on networks.

`python -m tests.analysis.captum_rows` prints the table of docs/analysis.md, and writes the values
of captum that tests compare with where it is not installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import jax
import numpy as np

from nnef_jax import analysis
from tests.analysis.captum_networks import NETWORKS, Network, in_torch

VALUES = Path(__file__).parent / "captum_values.npz"
KEY = jax.random.key(7)
MAPS = ("convolutional", "residual")
STEPS: Any = {"n_steps": 20, "method": "riemann_middle"}
Found = Any  # an array


class Case:
    """A network of NNEF and of torch, and a question about it."""

    def __init__(self, network: Network) -> None:
        self.network, self.model, self.x = network, network.model, network.x
        self.classes = np.array(network.classes)
        self.question: Any = {"target": self.classes}
        self.layer, self.unit, self.mask = network.layer, network.unit, network.mask
        shape = (4, *self.x.shape[1:])
        self.baselines = np.random.default_rng(5).normal(size=shape).astype(np.float32)
        self.neuron: Any = {"output": self.layer, "target": _unit(self.unit)}

    def to_torch(self) -> None:
        import torch
        from captum import attr

        self.attr, self.torch = attr, torch
        self.net, self.module = in_torch(self.network)
        self.tx, self.t = torch.tensor(self.x, requires_grad=True), torch.tensor(self.classes)
        self.tmask = torch.tensor(self.mask)[None]
        self.half = torch.full_like(self.tx, 0.5)
        self.at_half = self.module(self._before(self.half))

    def _before(self, x: Any) -> Any:
        """Return the input of the module."""
        found = []
        handle = self.module.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        self.net(x)
        handle.remove()
        return found[0]

    def of(self, name: str, *args: Any, **options: Any) -> Any:
        """Return the attributions of a method of captum for the classes."""
        method = getattr(self.attr, name)
        method = method(self.net, self.module) if name.startswith(_LAYERED) else method(self.net)
        target = {} if name.startswith("Neuron") and "Conduct" not in name else {"target": self.t}
        unit = (self.unit,) if name.startswith("Neuron") else ()
        if name == "NeuronConductance":
            options["neuron_selector"], unit = self.unit, ()
        return method.attribute(self.tx, *unit, *args, **target, **options)


_LAYERED = ("Layer", "Neuron", "InternalInfluence", "GuidedGradCam")


def _unit(unit: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda found: found[:, *unit]


def _values(name: str, *args: str, **options: Any) -> Callable[[Case], Found]:
    """Return a function that computes our values; arguments of these names are the case's."""

    def found(case: Case) -> Found:
        own = {k: getattr(case, v[1:]) if isinstance(v, str) and v[:1] == "@" else v
               for k, v in options.items()}  # fmt: skip
        neuron = own.pop("neuron_of", False)
        asked = case.neuron if neuron else case.question
        return getattr(analysis, name)(case.model, case.x, **asked, **own).values

    return found


def _theirs(name: str, **options: Any) -> Callable[[Case], Found]:
    def found(case: Case) -> Found:
        own = {k: getattr(case, v[1:]) if isinstance(v, str) and v[:1] == "@" else v
               for k, v in options.items()}  # fmt: skip
        return case.of(name, **own)

    return found


def _keys(samples: int) -> Any:
    return jax.random.split(KEY, samples)


def _orders(case: Case) -> Found:
    count = case.mask.max() + 1
    orders = [tuple(map(int, jax.random.permutation(key, int(count)))) for key in _keys(6)]
    method = case.attr.ShapleyValueSampling(case.net)
    method.permutation_generator = lambda *_: iter(orders)
    return method.attribute(case.tx, 0.5, case.t, feature_mask=case.tmask, n_samples=6)


def _permuted(case: Case) -> Found:
    drawn = iter(range(10_000))

    def permute(x: Any, mask: Any) -> Any:
        order = jax.random.permutation(jax.random.fold_in(KEY, next(drawn)), np.arange(len(x)))
        return case.torch.where(mask, x[np.asarray(order)], x)

    method = case.attr.FeaturePermutation(case.net, permute)
    return method.attribute(case.tx, case.t, feature_mask=case.tmask)


def _places(case: Case, samples: int = 8) -> Any:
    """Return a context in which captum draws the points of our gradient SHAP."""
    n, which, where = len(case.x), [], []
    for key in _keys(samples):
        first, second = jax.random.split(key)
        which.append(np.asarray(jax.random.randint(first, (n,), 0, len(case.baselines))))
        where.append(np.asarray(jax.random.uniform(second, (n,), case.x.dtype)))
    return mock.patch.multiple(
        np.random,
        choice=lambda *_: np.stack(which, 1).ravel(),
        uniform=lambda *_: np.stack(where, 1).ravel(),
    )


def _gradient_shap(case: Case, name: str = "GradientShap") -> Found:
    with _places(case):
        return case.of(name, case.torch.tensor(case.baselines), n_samples=8)


def _noisy(case: Case, kind: str) -> Found:
    drawn = [np.asarray(jax.random.normal(key, case.x.shape, case.x.dtype)) for key in _keys(5)]
    noise = case.torch.tensor(0.1 * np.stack(drawn, 1).reshape(-1, *case.x.shape[1:]))
    tunnel = case.attr.NoiseTunnel(case.attr.Saliency(case.net))
    with mock.patch.object(case.torch, "normal", lambda *_: noise):
        options: Any = {"nt_type": kind, "nt_samples": 5, "stdevs": 0.1, "abs": False}
        return tunnel.attribute(case.tx, target=case.t, **options)


def _our_noisy(case: Case, kind: str) -> Found:
    options: Any = {"key": KEY, "noise": 0.1, "samples": 5, "kind": kind, **case.question}
    return analysis.noise_tunnel(case.model, analysis.saliency, case.x, **options).values


def _each(case: Case, make: Callable[[int], Any]) -> Found:
    """Return the results for each item of a method that takes single items."""
    found = [make(i) for i in range(len(case.x))]
    return case.torch.cat(found)


def _coalitions(count: int, samples: int) -> Any:
    sizes, places = jax.random.split(KEY)
    k = np.arange(1, count)
    chosen = jax.random.choice(sizes, k, (samples,), p=1 / (k * (count - k)).astype(np.float32))
    ranks = jax.random.uniform(places, (samples, count)).argsort(1).argsort(1)
    return np.asarray(ranks < chosen[:, None])


def _kernel_shap(case: Case) -> Found:
    count = int(case.mask.max()) + 1
    ends = [np.ones(count, bool), np.zeros(count, bool)]
    drawn = [*ends, *_coalitions(count, 60)]
    rows = [case.torch.tensor(row)[None].long() for row in drawn]

    class Ours(case.attr.KernelShap):
        def kernel_shap_perturb_generator(self, *_: Any, **__: Any) -> Any:
            yield from rows  # captum asks whether it is a generator

    def item(i: int) -> Any:
        method: Any = Ours(case.net)
        method.inf_weight = 1e9
        options: Any = {"feature_mask": case.tmask, "n_samples": len(rows)}
        return method.attribute(case.tx[i : i + 1], 0.5, case.t[i : i + 1], **options)

    return _each(case, item)


def _lime(case: Case) -> Found:
    count = int(case.mask.max()) + 1
    drawn = np.asarray(jax.random.bernoulli(KEY, 0.5, (60, count)))

    def item(i: int) -> Any:
        rows = iter([case.torch.tensor(row)[None].long() for row in drawn])
        method: Any = case.attr.Lime(case.net, perturb_func=lambda *_, **__: next(rows))
        options: Any = {"feature_mask": case.tmask, "n_samples": 60}
        return method.attribute(case.tx[i : i + 1], 0.5, case.t[i : i + 1], **options)

    return _each(case, item)


def _lrp(case: Case, rule: Any = None) -> Found:
    if rule is not None:
        for module in case.net.modules():
            if isinstance(module, case.torch.nn.Conv2d | case.torch.nn.Linear):
                module.rule = rule()
    return case.of("LRP")


def _layer_lrp(case: Case) -> Found:
    """Captum asks for a layer before the rectifier, which passes relevance on as it is."""
    return case.attr.LayerLRP(case.net, case.net.before).attribute(case.tx, case.t)


def _gamma(case: Case) -> Found:
    from captum.attr._utils.lrp_rules import GammaRule

    return _lrp(case, partial(GammaRule, gamma=0.25))


def _positive(case: Case) -> Found:
    from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule

    return _lrp(case, Alpha1_Beta0_Rule)


def _infidelity(case: Case) -> Found:
    from captum.metrics import infidelity

    values = case.attr.Saliency(case.net).attribute(case.tx, case.t, abs=False)
    drawn = [np.asarray(jax.random.normal(key, case.x.shape, case.x.dtype)) for key in _keys(10)]
    noise = case.torch.tensor(0.1 * np.stack(drawn, 1).reshape(-1, *case.x.shape[1:]))
    options: Any = {"target": case.t, "n_perturb_samples": 10}
    return infidelity(case.net, lambda x: (noise, x - noise), case.tx, values, **options)


def _our_infidelity(case: Case) -> Found:
    values = analysis.saliency(case.model, case.x, **case.question).values
    options: Any = {"values": values, "key": KEY, "noise": 0.1, **case.question}
    return analysis.infidelity(case.model, case.x, **options).values


def _sensitivity(case: Case) -> Found:
    from captum.metrics import sensitivity_max

    drawn = [
        np.asarray(jax.random.uniform(key, case.x.shape, case.x.dtype, -0.1, 0.1))
        for key in _keys(10)
    ]
    moves = case.torch.tensor(np.stack(drawn, 1).reshape(-1, *case.x.shape[1:]))
    method = partial(case.attr.Saliency(case.net).attribute, abs=False)
    return sensitivity_max(method, case.tx, lambda x: x + moves, target=case.t)


def _our_sensitivity(case: Case) -> Found:
    options: Any = {"key": KEY, "radius": 0.1, **case.question}
    return analysis.max_sensitivity(case.model, analysis.saliency, case.x, **options).values


def _concepts(case: Case) -> tuple[Any, Any]:
    """Return inputs that show a concept, and others."""
    drawn = np.random.default_rng(6).normal(size=(2, 12, *case.x.shape[1:])).astype(np.float32)
    return drawn[0] + np.float32(0.5), drawn[1]


def _our_tcav(case: Case) -> Found:
    concept, others = _concepts(case)
    options: Any = {"layer": case.layer, "concept": concept, "counterexamples": others}
    options |= case.question
    found = analysis.tcav(case.model, case.x, **options)
    return np.array([found.share, np.mean(found.derivatives)])


def _tcav(case: Case) -> Found:
    """Score a concept; the classifier is ridge regression by scikit-learn, as ours."""
    from captum.concept import TCAV, Classifier, Concept
    from sklearn.linear_model import Ridge

    class Regression(Classifier):
        def __init__(self) -> None:
            pass

        def train_and_eval(self, dataloader: Any, **_: Any) -> None:
            rows, ids = (np.float64(np.concatenate(x)) for x in zip(*dataloader, strict=True))
            ridge = 1e-3 * rows.var(0).sum()
            found = Ridge(alpha=ridge, solver="svd").fit(rows, 1 - 2 * ids).coef_
            self.vector = case.torch.tensor(found / np.linalg.norm(found))

        def weights(self) -> Any:
            return case.torch.stack([self.vector, -self.vector])

        def classes(self) -> Any:
            return [0, 1]

    (layer,) = (name for name, module in case.net.named_modules() if module is case.module)
    both = [Concept(i, f"{i}", [case.torch.tensor(x)]) for i, x in enumerate(_concepts(case))]
    with TemporaryDirectory() as folder:
        method = TCAV(case.net, layer, classifier=Regression(), save_path=folder)
        scores = method.interpret(case.tx, [both], case.t)["0-1"][layer]
    return case.torch.stack([scores["sign_count"][0], scores["magnitude"][0]])


def _ours_inside(case: Case) -> Found:
    return case.model.intermediates(case.x, names=[case.layer])[case.layer]


ours, theirs = _values, _theirs
_INSIDE: Any = {"wrt": "@layer"}
_HALF: Any = {"baseline": 0.5}
_THERE: Any = {"baselines": "@half"}
_SHAP: Any = {"key": KEY, "baselines": "@baselines", "samples": 8}
_MASKED: Any = {"mask": "@mask", "baseline": 0.5}
_NEURON: Any = {"neuron_of": True}
# By the name of captum: ours as it is written, the networks if not all, what finds ours and theirs.
ROWS: dict[str, tuple[str, Any, Callable[[Case], Found], Callable[[Case], Found]]] = {
    "Saliency": (
        "saliency(...)", None, ours("saliency"), theirs("Saliency", abs=False)
    ),
    "InputXGradient": (
        "saliency(..., times_input=True)", None, ours("saliency", times_input=True),
        theirs("InputXGradient"),
    ),
    "IntegratedGradients": (
        'integrated_gradients(..., method="gausslegendre")', None,
        ours("integrated_gradients", method="gausslegendre", steps=20, **_HALF),
        theirs("IntegratedGradients", n_steps=20, **_THERE),
    ),
    "DeepLift": ("deep_lift(...)", None, ours("deep_lift", **_HALF), theirs("DeepLift", **_THERE)),
    "DeepLiftShap": (
        "deep_lift_shap(...)", None, ours("deep_lift_shap", baselines="@baselines"),
        lambda c: c.of("DeepLiftShap", c.torch.tensor(c.baselines)),
    ),
    "GradientShap": ("gradient_shap(...)", None, ours("gradient_shap", **_SHAP), _gradient_shap),
    "GuidedBackprop": (
        "guided_backprop(...)", None, ours("guided_backprop"), theirs("GuidedBackprop")
    ),
    "Deconvolution": ("deconvolution(...)", None, ours("deconvolution"), theirs("Deconvolution")),
    "GuidedGradCam": (
        "guided_grad_cam(..., layer=)", MAPS, ours("guided_grad_cam", layer="@layer"),
        theirs("GuidedGradCam", interpolate_mode="bilinear"),
    ),
    "LRP": ("lrp(...)", None, ours("lrp"), _lrp),
    "LRP, GammaRule": ('lrp(..., rule="gamma")', None, ours("lrp", rule="gamma"), _gamma),
    "LRP, Alpha1_Beta0_Rule": (
        'lrp(..., rule="alpha1_beta0")', None, ours("lrp", rule="alpha1_beta0"), _positive
    ),
    "Occlusion": (
        "occlusion(..., window=, stride=)", MAPS,
        ours("occlusion", window=(2, 3), stride=(2, 1), **_HALF),
        lambda c: c.of("Occlusion", (2, 2, 3), strides=(2, 2, 1), baselines=0.5)[:, 0],
    ),
    "FeatureAblation": (
        "feature_ablation(..., mask=)", None, ours("feature_ablation", **_MASKED),
        theirs("FeatureAblation", feature_mask="@tmask", baselines=0.5),
    ),
    "FeaturePermutation": (
        "feature_permutation(..., mask=)", None,
        ours("feature_permutation", key=KEY, mask="@mask"), _permuted,
    ),
    "ShapleyValues": (
        "shapley_values(..., mask=)", ("dense",), ours("shapley_values", **_MASKED),
        theirs("ShapleyValues", feature_mask="@tmask", baselines=0.5),
    ),
    "ShapleyValueSampling": (
        "shapley_values(..., mask=, sampled=)", None,
        ours("shapley_values", sampled=(KEY, 6), **_MASKED), _orders,
    ),
    "KernelShap": (
        "kernel_shap(..., mask=, sampled=)", None,
        ours("kernel_shap", sampled=(KEY, 60), **_MASKED), _kernel_shap,
    ),
    "Lime": (
        "lime(..., mask=, sampled=)", None, ours("lime", sampled=(KEY, 60), **_MASKED), _lime
    ),
    "NoiseTunnel, smoothgrad": (
        "noise_tunnel(model, saliency, ...)", None, partial(_our_noisy, kind="mean"),
        partial(_noisy, kind="smoothgrad"),
    ),
    "NoiseTunnel, smoothgrad_sq": (
        'noise_tunnel(model, saliency, ..., kind="square")', None,
        partial(_our_noisy, kind="square"), partial(_noisy, kind="smoothgrad_sq"),
    ),
    "NoiseTunnel, vargrad": (
        'noise_tunnel(model, saliency, ..., kind="variance")', None,
        partial(_our_noisy, kind="variance"), partial(_noisy, kind="vargrad"),
    ),
    "LayerActivation": (
        "model.intermediates(...)", None, _ours_inside,
        lambda c: c.attr.LayerActivation(c.net, c.module).attribute(c.tx),
    ),
    "LayerGradientXActivation": (
        "saliency(..., wrt=, times_input=True)", None,
        ours("saliency", times_input=True, **_INSIDE), theirs("LayerGradientXActivation"),
    ),
    "LayerGradCam": (
        "grad_cam(..., layer=)", MAPS, ours("grad_cam", layer="@layer", upsample=False),
        lambda c: c.of("LayerGradCam", relu_attributions=True)[:, 0],
    ),
    "LayerIntegratedGradients": (
        "integrated_gradients(..., wrt=)", None,
        ours("integrated_gradients", steps=20, **_INSIDE, **_HALF),
        theirs("LayerIntegratedGradients", **_THERE, **STEPS),
    ),
    "LayerConductance": (
        "layer_conductance(..., layer=)", None,
        ours("layer_conductance", layer="@layer", steps=2000, **_HALF),
        theirs("LayerConductance", n_steps=2000, method="riemann_middle", **_THERE),
    ),
    "InternalInfluence": (
        "internal_influence(..., layer=)", None,
        ours("internal_influence", layer="@layer", steps=20, **_HALF),
        theirs("InternalInfluence", **_THERE, **STEPS),
    ),
    "LayerDeepLift": (
        "deep_lift(..., wrt=)", None, ours("deep_lift", **_INSIDE, **_HALF),
        theirs("LayerDeepLift", **_THERE),
    ),
    "LayerDeepLiftShap": (
        "deep_lift_shap(..., wrt=)", None,
        ours("deep_lift_shap", baselines="@baselines", **_INSIDE),
        lambda c: c.of("LayerDeepLiftShap", c.torch.tensor(c.baselines)),
    ),
    "LayerFeatureAblation": (
        "feature_ablation(..., wrt=)", None, ours("feature_ablation", **_INSIDE, **_HALF),
        theirs("LayerFeatureAblation", layer_baselines="@at_half"),
    ),
    "LayerLRP": ("lrp(..., wrt=)", None, ours("lrp", **_INSIDE), _layer_lrp),
    "NeuronGradient": (
        "saliency(..., output=, target=unit)", None, ours("saliency", **_NEURON),
        theirs("NeuronGradient"),
    ),
    "NeuronIntegratedGradients": (
        "integrated_gradients(..., output=, target=unit)", None,
        ours("integrated_gradients", steps=20, **_NEURON, **_HALF),
        theirs("NeuronIntegratedGradients", **_THERE, **STEPS),
    ),
    "NeuronConductance": (
        "neuron_conductance(..., neuron=)", None,
        lambda c: ours("neuron_conductance", neuron=(c.layer, *c.unit), steps=20, **_HALF)(c),
        theirs("NeuronConductance", **_THERE, **STEPS),
    ),
    "NeuronDeepLift": (
        "deep_lift(..., output=, target=unit)", None, ours("deep_lift", **_NEURON, **_HALF),
        theirs("NeuronDeepLift", **_THERE),
    ),
    "NeuronDeepLiftShap": (
        "deep_lift_shap(..., output=, target=unit)", None,
        ours("deep_lift_shap", baselines="@baselines", **_NEURON),
        lambda c: c.of("NeuronDeepLiftShap", c.torch.tensor(c.baselines)),
    ),
    "NeuronGradientShap": (
        "gradient_shap(..., output=, target=unit)", None,
        ours("gradient_shap", **_SHAP, **_NEURON),
        partial(_gradient_shap, name="NeuronGradientShap"),
    ),
    "NeuronGuidedBackprop": (
        "guided_backprop(..., output=, target=unit)", None, ours("guided_backprop", **_NEURON),
        theirs("NeuronGuidedBackprop"),
    ),
    "NeuronDeconvolution": (
        "deconvolution(..., output=, target=unit)", None, ours("deconvolution", **_NEURON),
        theirs("NeuronDeconvolution"),
    ),
    "NeuronFeatureAblation": (
        "feature_ablation(..., mask=, output=, target=unit)", None,
        ours("feature_ablation", **_MASKED, **_NEURON),
        theirs("NeuronFeatureAblation", feature_mask="@tmask", baselines=0.5),
    ),
    "infidelity": ("infidelity(..., values=)", None, _our_infidelity, _infidelity),
    "sensitivity_max": (
        "max_sensitivity(model, saliency, ...)", None, _our_sensitivity, _sensitivity,
    ),
    "TCAV": ("tcav(..., layer=, concept=, counterexamples=)", None, _our_tcav, _tcav),
}  # fmt: skip

# Rows and networks whose values of captum are kept.
RECORDED = [
    ("IntegratedGradients", "dense"),
    ("DeepLift", "convolutional"),
    ("DeepLiftShap", "residual"),
    ("LRP", "residual"),
    ("LRP, GammaRule", "convolutional"),
    ("GuidedGradCam", "convolutional"),
    ("Deconvolution", "dense"),
    ("FeatureAblation", "residual"),
    ("KernelShap", "dense"),
    ("Lime", "dense"),
    ("InternalInfluence", "dense"),
    ("NeuronConductance", "dense"),
]


def case_of(name: str) -> Case:
    return Case(NETWORKS[name]())


def found(row: str, network: str) -> Found:
    """Return our values."""
    return np.asarray(ROWS[row][2](case_of(network)))


def wanted(row: str, network: str) -> Found:
    """Return captum's values."""
    case = case_of(network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.to_torch()
        return ROWS[row][3](case).detach().numpy()


def close(row: str, found: Found, wanted: Found) -> None:
    """Assert that both are close; captum takes conductances at other points of steps."""
    share = 5e-3 if row == "LayerConductance" else 5e-5
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=share * np.abs(wanted).max())


def main() -> None:
    recorded: dict[str, Any] = {}
    print("| captum | here | largest difference | of values up to |\n|---|---|---|---|")
    for row, (here, networks, *_) in ROWS.items():
        worst = 0.0, 0.0
        for network in networks or NETWORKS:
            theirs, own = wanted(row, network), found(row, network)
            if (row, network) in RECORDED:
                recorded[f"{row} {network}"] = theirs
            assert own.shape == theirs.shape, (row, own.shape, theirs.shape)
            worst = max(worst, (float(np.abs(own - theirs).max()), float(np.abs(theirs).max())))
        print(f"| `{row}` | `{here}` | {worst[0]:.0e} | {worst[1]:.2g} |", flush=True)
    np.savez_compressed(VALUES, **recorded)


if __name__ == "__main__":
    main()
