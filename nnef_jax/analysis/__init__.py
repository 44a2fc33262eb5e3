"""Explains networks: attributions, attacks, curvature, statistics of tensors, comparisons.

An analysis is a function that takes any `Model`, and returns a result with a table and a picture. A
name is imported when it is first used.

Where are the methods of attribution? `gradients`, `noise`, `features`, `layer_attribution`,
    `reference`, `relevance`, `occlusion_windows`
Where are scores pulled backwards by other rules than derivatives? `propagation`
Where does an analysis get the tensors inside a network? `layer_tensors`
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nnef_jax.analysis.adversarial import Adversarial as Adversarial
    from nnef_jax.analysis.adversarial import fgsm as fgsm
    from nnef_jax.analysis.adversarial import pgd as pgd
    from nnef_jax.analysis.adversarial import smallest_perturbation as smallest_perturbation
    from nnef_jax.analysis.attribution import Attribution as Attribution
    from nnef_jax.analysis.certified import Bounds as Bounds
    from nnef_jax.analysis.certified import bounds as bounds
    from nnef_jax.analysis.comparison import Comparison as Comparison
    from nnef_jax.analysis.comparison import TensorDifference as TensorDifference
    from nnef_jax.analysis.comparison import compare as compare
    from nnef_jax.analysis.dataset_statistics import Statistics as Statistics
    from nnef_jax.analysis.dataset_statistics import activation_statistics as activation_statistics
    from nnef_jax.analysis.dataset_statistics import gradient_statistics as gradient_statistics
    from nnef_jax.analysis.features import feature_ablation as feature_ablation
    from nnef_jax.analysis.features import feature_permutation as feature_permutation
    from nnef_jax.analysis.features import kernel_shap as kernel_shap
    from nnef_jax.analysis.features import lime as lime
    from nnef_jax.analysis.features import shapley_values as shapley_values
    from nnef_jax.analysis.gradients import integrated_gradients as integrated_gradients
    from nnef_jax.analysis.gradients import saliency as saliency
    from nnef_jax.analysis.hessian import HessianEigenvalues as HessianEigenvalues
    from nnef_jax.analysis.hessian import HessianTrace as HessianTrace
    from nnef_jax.analysis.hessian import hessian_eigenvalues as hessian_eigenvalues
    from nnef_jax.analysis.hessian import hessian_trace as hessian_trace
    from nnef_jax.analysis.influence import Concept as Concept
    from nnef_jax.analysis.influence import Influence as Influence
    from nnef_jax.analysis.influence import tcav as tcav
    from nnef_jax.analysis.influence import tracin as tracin
    from nnef_jax.analysis.layer_attribution import grad_cam as grad_cam
    from nnef_jax.analysis.layer_attribution import internal_influence as internal_influence
    from nnef_jax.analysis.layer_attribution import layer_conductance as layer_conductance
    from nnef_jax.analysis.layer_attribution import neuron_conductance as neuron_conductance
    from nnef_jax.analysis.maximisation import Maximised as Maximised
    from nnef_jax.analysis.maximisation import activation_maximisation as activation_maximisation
    from nnef_jax.analysis.noise import Infidelity as Infidelity
    from nnef_jax.analysis.noise import MaxSensitivity as MaxSensitivity
    from nnef_jax.analysis.noise import gradient_shap as gradient_shap
    from nnef_jax.analysis.noise import infidelity as infidelity
    from nnef_jax.analysis.noise import max_sensitivity as max_sensitivity
    from nnef_jax.analysis.noise import noise_tunnel as noise_tunnel
    from nnef_jax.analysis.occlusion_windows import occlusion as occlusion
    from nnef_jax.analysis.reference import deep_lift as deep_lift
    from nnef_jax.analysis.reference import deep_lift_shap as deep_lift_shap
    from nnef_jax.analysis.relevance import deconvolution as deconvolution
    from nnef_jax.analysis.relevance import guided_backprop as guided_backprop
    from nnef_jax.analysis.relevance import guided_grad_cam as guided_grad_cam
    from nnef_jax.analysis.relevance import lrp as lrp
    from nnef_jax.analysis.sensitivities import Sensitivity as Sensitivity
    from nnef_jax.analysis.sensitivities import sensitivity as sensitivity
    from nnef_jax.analysis.spectrum import JacobianSpectrum as JacobianSpectrum
    from nnef_jax.analysis.spectrum import jacobian_spectrum as jacobian_spectrum
    from nnef_jax.analysis.tensor_statistics import TensorStatistics as TensorStatistics

# The keys are modules of this package. The values are the names in a module that a user can import
# from the package.
_NAMES = {
    "adversarial": ("Adversarial", "fgsm", "pgd", "smallest_perturbation"),
    "attribution": ("Attribution",),
    "certified": ("Bounds", "bounds"),
    "comparison": ("Comparison", "TensorDifference", "compare"),
    "dataset_statistics": ("Statistics", "activation_statistics", "gradient_statistics"),
    "features": (
        "feature_ablation",
        "feature_permutation",
        "kernel_shap",
        "lime",
        "shapley_values",
    ),
    "gradients": ("integrated_gradients", "saliency"),
    "hessian": ("HessianEigenvalues", "HessianTrace", "hessian_eigenvalues", "hessian_trace"),
    "influence": ("Concept", "Influence", "tcav", "tracin"),
    "layer_attribution": (
        "grad_cam",
        "internal_influence",
        "layer_conductance",
        "neuron_conductance",
    ),
    "maximisation": ("Maximised", "activation_maximisation"),
    "noise": (
        "Infidelity",
        "MaxSensitivity",
        "gradient_shap",
        "infidelity",
        "max_sensitivity",
        "noise_tunnel",
    ),
    "occlusion_windows": ("occlusion",),
    "reference": ("deep_lift", "deep_lift_shap"),
    "relevance": ("deconvolution", "guided_backprop", "guided_grad_cam", "lrp"),
    "sensitivities": ("Sensitivity", "sensitivity"),
    "spectrum": ("JacobianSpectrum", "jacobian_spectrum"),
    "tensor_statistics": ("TensorStatistics",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module 'nnef_jax.analysis' has no attribute {name!r}"
        raise AttributeError(message + _captum_hint(name))
    from importlib import import_module

    value: object = getattr(import_module(f"nnef_jax.analysis.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def _captum_hint(name: str) -> str:
    """Return the end of an error message for a user who writes a name of captum.

    The text names the call in this package that replaces captum's name.
    """
    from nnef_jax.analysis.captum_names import call_for

    call = call_for(name, filter(str.islower, __all__))
    return f", it is {call} here" if call else ""


def __dir__() -> list[str]:
    return sorted(__all__)
