"""A slow and plain second writing of every algorithm, from the papers: one module a model, one loop a sum, float64.

Nothing here is taken from the package but the settings (read by name) and the federation. Losses are written whole and
differentiated by autograd, the IRM penalty through a dummy classifier w and a second backward pass; steps are taken by
torch.optim; the server averages models, not steps.
"""

from tests.reference.aggregation import AgreeingFedAvg, ClippedFedAvg, MatchedFedAvg, TrimmedFedAvg
from tests.reference.invariant import IRM, IRMFT, GroupDRO, GroupDROContexts, IRMContexts, Scheduled, VREx
from tests.reference.losses import context_risks, irm_loss, irm_penalty, mean_loss, predict, risk, scale_gradient
from tests.reference.mixed import APFL, FedALA, PerFedAvg
from tests.reference.networks import (
    descend,
    distance_squared,
    make_optimizer,
    network,
    norm_squared,
    overwrite,
    parameters_of,
    set_rate,
)
from tests.reference.parts import FedPer, FedRep, LGFedAvg, PartlyPersonal
from tests.reference.perinvfl import (
    IRML2,
    PerInvFLBase,
    PerInvFLGroupDRO,
    PerInvFLGroupDROContexts,
    PerInvFLIRM,
    PerInvFLIRMContexts,
)
from tests.reference.personalized import FTFA, Alone, Ditto, FedAvg, FineTuning, Personalized, PFedMe
from tests.reference.pooled import PooledERM, PooledFishr, PooledGroupDRO, PooledIRM
from tests.reference.samples import Batch, Samples, log_odds_of_answers, samples_of, shortcut_offsets
from tests.reference.schedules import (
    AveragedFedAvg,
    AveragedFTFA,
    CooledFedAvg,
    CooledPerInvFL,
    LatePerInvFLIRM,
    PartPerInvFL,
    half_cosine,
)
from tests.reference.shared import SCAFFOLD, FedAdam, FedNova, FedProx, FedYogi
from tests.reference.shift import FedDGGA, FedIIR, FedSR

__all__ = [
    "APFL",
    "FTFA",
    "IRM",
    "IRMFT",
    "IRML2",
    "SCAFFOLD",
    "AgreeingFedAvg",
    "Alone",
    "AveragedFTFA",
    "AveragedFedAvg",
    "Batch",
    "ClippedFedAvg",
    "CooledFedAvg",
    "CooledPerInvFL",
    "Ditto",
    "FedALA",
    "FedAdam",
    "FedAvg",
    "FedDGGA",
    "FedIIR",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSR",
    "FedYogi",
    "FineTuning",
    "GroupDRO",
    "GroupDROContexts",
    "IRMContexts",
    "LGFedAvg",
    "LatePerInvFLIRM",
    "MatchedFedAvg",
    "PFedMe",
    "PartPerInvFL",
    "PartlyPersonal",
    "PerFedAvg",
    "PerInvFLBase",
    "PerInvFLGroupDRO",
    "PerInvFLGroupDROContexts",
    "PerInvFLIRM",
    "PerInvFLIRMContexts",
    "Personalized",
    "PooledERM",
    "PooledFishr",
    "PooledGroupDRO",
    "PooledIRM",
    "Samples",
    "Scheduled",
    "TrimmedFedAvg",
    "VREx",
    "context_risks",
    "descend",
    "distance_squared",
    "half_cosine",
    "irm_loss",
    "irm_penalty",
    "log_odds_of_answers",
    "make_optimizer",
    "mean_loss",
    "network",
    "norm_squared",
    "overwrite",
    "parameters_of",
    "predict",
    "risk",
    "samples_of",
    "scale_gradient",
    "set_rate",
    "shortcut_offsets",
]
