"""Every algorithm with the plain reference it is compared with, and two trials of settings."""

from typing import Any, NamedTuple

from perinvfl.algorithms import (
    APFL,
    FTFA,
    IRM,
    IRMFT,
    IRML2,
    SCAFFOLD,
    Alone,
    Ditto,
    FedAdam,
    FedALA,
    FedAvg,
    FedDGGA,
    FedIIR,
    FedNova,
    FedPer,
    FedProx,
    FedRep,
    FedSR,
    FedYogi,
    GroupDRO,
    LGFedAvg,
    PerFedAvg,
    PerInvFL,
    PFedMe,
    PooledERM,
    PooledFishr,
    PooledGroupDRO,
    PooledIRM,
    VREx,
)
from perinvfl.algorithms.base import Algorithm
from tests import reference


class Case(NamedTuple):
    algorithm: type[Algorithm]
    reference: type[reference.FedAvg]
    shared: dict[str, Any]  # settings of both trials
    first: dict[str, Any]
    second: dict[str, Any]


# Warm-up ends in the middle of the four rounds; of the two trials one has λ < 1, and they switch in different rounds.
SCHEDULE: tuple[dict[str, Any], dict[str, Any]] = (
    {"penalty_weight": 20.0, "warmup_rounds": 2},
    {"penalty_weight": 3.0, "warmup_rounds": 1},
)
BETAS: tuple[dict[str, Any], dict[str, Any]] = ({"beta": (0.1, 0.7, 0.0, 1.5)}, {"beta": 0.4})
PULLS: tuple[dict[str, Any], dict[str, Any]] = ({"pull": (0.1, 0.7, 1.0, 1.5)}, {"pull": 0.4})
DRO: tuple[dict[str, Any], dict[str, Any]] = ({"group_step": 0.8}, {"group_step": 0.1})
STEPS = {"local_steps": 2, "personal_steps": 2}
ADAPTIVE = {"local_steps": 2, "server_learning_rate": 0.02, "adaptivity": 0.01}
ADAPTING = {"local_steps": 2, "weight_steps": 2}
HESSIAN_FREE = {"local_steps": 2, "variant": "hessian-free", "difference": 0.05}
EVERYWHERE = ADAPTING | {"adapted_part": "all"}
TUNING = {"local_steps": 2, "finetune_steps": 3}

CASES = {
    "alone": Case(Alone, reference.Alone, {"local_steps": 2}, {}, {}),
    "fedavg": Case(FedAvg, reference.FedAvg, {"local_steps": 2}, {}, {}),
    "ditto": Case(Ditto, reference.Ditto, STEPS, *PULLS),
    "ftfa": Case(FTFA, reference.FTFA, TUNING, {"finetune_learning_rate": 0.1}, {"finetune_learning_rate": 0.2}),
    "pfedme": Case(PFedMe, reference.PFedMe, STEPS, *PULLS),
    "fedprox": Case(FedProx, reference.FedProx, {"local_steps": 3}, {"mu": 0.3}, {"mu": 1.0}),
    "scaffold": Case(SCAFFOLD, reference.SCAFFOLD, {"local_steps": 3}, {}, {}),
    "fedadam": Case(FedAdam, reference.FedAdam, ADAPTIVE, {"momentum": 0.8}, {"memory": 0.9}),
    "fedyogi": Case(FedYogi, reference.FedYogi, ADAPTIVE, {"momentum": 0.8}, {"memory": 0.9}),
    "fednova": Case(FedNova, reference.FedNova, {"local_steps": 4}, {"epochs": 1.0}, {"epochs": 2.0}),
    "fedper": Case(FedPer, reference.FedPer, {"local_steps": 2}, {}, {}),
    "fedrep": Case(FedRep, reference.FedRep, STEPS, {}, {}),
    "lg_fedavg": Case(LGFedAvg, reference.LGFedAvg, {"local_steps": 2}, {}, {}),
    "apfl": Case(APFL, reference.APFL, {"local_steps": 2}, {"mixing": 0.3}, {"mixing": 0.8}),
    "apfl_fixed": Case(APFL, reference.APFL, {"local_steps": 2, "adaptive": False}, {"mixing": 0.3}, {"mixing": 0.8}),
    "per_fedavg": Case(PerFedAvg, reference.PerFedAvg, HESSIAN_FREE, {}, {}),
    "per_fedavg_first": Case(PerFedAvg, reference.PerFedAvg, {"local_steps": 2}, {}, {}),
    "fedala": Case(FedALA, reference.FedALA, ADAPTING, {"weight_rate": 100.0}, {"weight_rate": 300.0}),
    "fedala_all": Case(FedALA, reference.FedALA, EVERYWHERE, {"weight_rate": 10.0}, {"weight_rate": 3.0}),
    "groupdro": Case(GroupDRO, reference.GroupDRO, {"local_steps": 2}, *DRO),
    "irm": Case(IRM, reference.IRM, {"local_steps": 2}, *SCHEDULE),
    "irm_unscaled": Case(
        IRM, reference.IRM, {"local_steps": 2, "rescale": False}, {"penalty_weight": 2.0}, {"penalty_weight": 0.5}
    ),
    "irm_ft": Case(IRMFT, reference.IRMFT, TUNING, *SCHEDULE),
    "irm_l2": Case(IRML2, reference.IRML2, STEPS, BETAS[0] | SCHEDULE[0], BETAS[1] | SCHEDULE[1]),
    "perinvfl_irm": Case(PerInvFL, reference.PerInvFLIRM, STEPS, BETAS[0] | SCHEDULE[0], BETAS[1] | SCHEDULE[1]),
    "perinvfl_groupdro": Case(
        PerInvFL, reference.PerInvFLGroupDRO, STEPS | {"invariance": "groupdro"}, BETAS[0] | DRO[0], BETAS[1] | DRO[1]
    ),
    "perinvfl_late": Case(
        PerInvFL,
        reference.LatePerInvFLIRM,
        STEPS | {"warmup_rounds": 0},
        {"beta": 0.1, "penalty_weight": 20.0, "personal_after": 1},
        {"beta": 0.4, "penalty_weight": 3.0, "personal_after": 2},
    ),
    "fedavg_agreeing": Case(
        FedAvg, reference.AgreeingFedAvg, {"local_steps": 2}, {"agreement": 0.7}, {"agreement": 0.3}
    ),
    "fedavg_matched": Case(FedAvg, reference.MatchedFedAvg, {"local_steps": 2}, {"matching": 0.5}, {"matching": 0.9}),
    "fedavg_trimmed": Case(FedAvg, reference.TrimmedFedAvg, {"local_steps": 2}, {"trimming": 0.3}, {"trimming": 0.2}),
    "fedavg_median": Case(FedAvg, reference.TrimmedFedAvg, {"local_steps": 2}, {"trimming": 0.5}, {"trimming": 0.5}),
    "fedavg_clipped": Case(FedAvg, reference.ClippedFedAvg, {"local_steps": 2}, {"clipping": 0.9}, {"clipping": 1.2}),
    "fedavg_averaged": Case(FedAvg, reference.AveragedFedAvg, {"local_steps": 2, "average_after": 2}, {}, {}),
    "fedavg_not_yet": Case(FedAvg, reference.AveragedFedAvg, {"local_steps": 2, "average_after": 4}, {}, {}),
    "ftfa_averaged": Case(FTFA, reference.AveragedFTFA, TUNING | {"average_after": 1}, {}, {}),
    "fedavg_cooled": Case(FedAvg, reference.CooledFedAvg, {"local_steps": 2, "cooling": 5}, {}, {}),
    "perinvfl_cooled": Case(
        PerInvFL,
        reference.CooledPerInvFL,
        STEPS | {"warmup_rounds": 0, "cooling": 4},
        {"beta": 0.1, "penalty_weight": 20.0, "personal_after": 1},
        {"beta": 0.4, "penalty_weight": 3.0, "personal_after": 2},
    ),
    "perinvfl_head": Case(
        PerInvFL, reference.PartPerInvFL, STEPS | {"personal_part": "head"}, {"beta": 0.1}, {"beta": 0.4}
    ),
    "perinvfl_features": Case(
        PerInvFL, reference.PartPerInvFL, STEPS | {"personal_part": "features"}, {"beta": 0.1}, {"beta": 0.4}
    ),
    "vrex": Case(VREx, reference.VREx, {"local_steps": 2}, {"penalty_weight": 5.0}, {"penalty_weight": 0.5}),
    "vrex_unscaled": Case(
        VREx, reference.VREx, {"local_steps": 2, "rescale": False}, {"penalty_weight": 2.0}, {"penalty_weight": 0.5}
    ),
    "fedsr": Case(FedSR, reference.FedSR, {"local_steps": 2}, {"l2r": 0.02, "cmi": 0.3}, {"l2r": 0.0, "cmi": 0.05}),
    "fediir": Case(
        FedIIR, reference.FedIIR, {"local_steps": 2}, {"penalty_weight": 0.8, "memory": 0.5}, {"penalty_weight": 3.0}
    ),
    "feddg_ga": Case(
        FedDGGA, reference.FedDGGA, {"local_steps": 2, "total_rounds": 3}, {"adjustment": 0.1}, {"adjustment": 0.4}
    ),
    "pooled_erm": Case(PooledERM, reference.PooledERM, {"local_steps": 2}, {}, {}),
    "pooled_irm": Case(PooledIRM, reference.PooledIRM, {"local_steps": 2}, *SCHEDULE),
    "pooled_groupdro": Case(PooledGroupDRO, reference.PooledGroupDRO, {"local_steps": 2}, *DRO),
    "pooled_fishr": Case(PooledFishr, reference.PooledFishr, {"local_steps": 2}, *SCHEDULE),
}
SHIFT = ("fedsr", "fediir", "feddg_ga", "pooled_irm", "pooled_groupdro")
PENALIZED = ("irm", "irm_unscaled", "irm_ft", "irm_l2", "perinvfl_irm")

# What runs over contexts inferred to be balanced, and what is trained with a shortcut discounted.
BALANCED = {
    name: CASES[name]._replace(reference=slow)
    for name, slow in {
        "irm": reference.IRMContexts,
        "groupdro": reference.GroupDROContexts,
        "perinvfl_irm": reference.PerInvFLIRMContexts,
        "perinvfl_groupdro": reference.PerInvFLGroupDROContexts,
    }.items()
}
DISCOUNTED = ("fedavg", "perinvfl_irm", "perinvfl_groupdro", "ftfa")
