"""Other ways to put the clients' moves together."""

import statistics

import torch
from torch import Tensor, nn

from tests.reference.personalized import FedAvg


class AgreeingFedAvg(FedAvg):
    """FedGMA: a coordinate on whose direction the clients agree less than τ counts as much as they agree."""

    def together(self, moves: list[Tensor], shares: list[float]) -> Tensor:
        mean = super().together(moves, shares)
        agreed = super().together([torch.sign(move) for move in moves], shares).abs()
        return torch.where(agreed >= self.set.agreement, mean, agreed * mean)


class MatchedFedAvg(FedAvg):
    """FedOMG: within κ‖ḡ‖ of the mean move, the one whose smallest inner product with a client's move is largest."""

    def shares(self, participants: list[int], shares: list[float]) -> list[float]:
        def flat(model: nn.Module) -> Tensor:
            return torch.cat([p.detach().flatten() for p in model.parameters()])

        moves = [flat(self.local[i]) - flat(self.nu) for i in participants]
        mean = sum(share * move for share, move in zip(shares, moves, strict=True))
        assert isinstance(mean, Tensor)
        length = float(mean.norm())
        ahead = [float(move @ mean) / length**2 for move in moves]
        longest = max(float(move.norm()) for move in moves) / length
        step = 1 / (max(map(abs, ahead)) + self.set.matching * longest)
        logs = [0.0] * len(moves)
        for _ in range(200):
            direction = self.mixed(logs, moves)
            for i, move in enumerate(moves):
                slope = ahead[i] + self.set.matching * float(move @ direction) / (length * float(direction.norm()))
                logs[i] -= step * slope
        direction = self.mixed(logs, moves)
        weights = torch.softmax(torch.tensor(logs, dtype=torch.float64), 0).tolist()
        factor = self.set.matching * length / float(direction.norm())
        return [share + factor * weight for share, weight in zip(shares, weights, strict=True)]

    def mixed(self, logs: list[float], moves: list[Tensor]) -> Tensor:
        weights = torch.softmax(torch.tensor(logs, dtype=torch.float64), 0).tolist()
        return super().together(moves, weights)


class TrimmedFedAvg(FedAvg):
    """In each coordinate, the clients' numbers in order: those within κ of either end are left out."""

    def together(self, moves: list[Tensor], shares: list[float]) -> Tensor:
        columns = torch.stack([move.flatten() for move in moves], 1).tolist()
        made = [self.middle(sorted(zip(column, shares, strict=True))) for column in columns]
        return torch.tensor(made, dtype=moves[0].dtype).view(moves[0].shape)

    def middle(self, pairs: list[tuple[float, float]]) -> float:
        least, place, total, counted = self.set.trimming, 0.0, 0.0, 0.0
        for number, share in pairs:
            if least < 0.5:
                inside = max(0.0, min(place + share, 1 - least) - max(place, least))
            else:
                inside = float(place < 0.5 + 1e-6 and place + share > 0.5 - 1e-6)
            total, counted, place = total + inside * number, counted + inside, place + share
        return total / counted


class ClippedFedAvg(FedAvg):
    """A client's whole move is shortened to c times the median of the lengths."""

    def shares(self, participants: list[int], shares: list[float]) -> list[float]:
        def flat(model: nn.Module) -> Tensor:
            return torch.cat([p.detach().flatten() for p in model.parameters()])

        lengths = [float((flat(self.local[i]) - flat(self.nu)).norm()) for i in participants]
        bound = self.set.clipping * statistics.median(lengths)
        return [share * min(1.0, bound / length) for share, length in zip(shares, lengths, strict=True)]
