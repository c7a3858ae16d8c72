"""Soft cross entropy of the head's output layer, in pieces, so that no logits are kept for the way back."""

import torch


def terms(logits, chances, weights):
    """(loss, its gradient by the logits, in their type) of a piece: logits and chances [n, tokens], weights [n]."""
    numbers = logits.float()
    total = numbers.logsumexp(1, keepdim=True)
    wanted = chances.float()
    loss = (weights * (total.squeeze(1) - (wanted * numbers).sum(1))).sum()
    gradient = ((numbers - total).exp() - wanted) * weights[:, None]
    return loss, gradient.to(logits.dtype)


class SoftCrossEntropy(torch.autograd.Function):
    """Sum over rows of weights * cross entropy(chances, softmax(y . matrix)); gradients are made on the way there."""

    @staticmethod
    def forward(ctx, y, matrix, chances, weights, terms_of, dtype, chunk=8192):
        narrow, narrow_y = matrix.to(dtype), y.to(dtype)
        by_y = torch.empty_like(narrow_y)
        by_matrix = torch.zeros_like(matrix, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        loss = torch.zeros((), device=y.device)
        for begin in range(0, len(y), chunk):
            piece = slice(begin, begin + chunk)
            part, gradient = terms_of(narrow_y[piece] @ narrow.T, chances[piece], weights[piece])
            loss += part
            by_y[piece] = gradient @ narrow
            if by_matrix is not None:
                by_matrix += gradient.T @ narrow_y[piece]
        ctx.save_for_backward(by_y, by_matrix)
        ctx.y_dtype = y.dtype
        return loss

    @staticmethod
    def backward(ctx, upstream):
        by_y, by_matrix = ctx.saved_tensors
        by_matrix = None if by_matrix is None else by_matrix * upstream
        return by_y.to(ctx.y_dtype) * upstream, by_matrix, None, None, None, None, None


def soft_cross_entropy(y, matrix, chances, weights, terms_of=terms, dtype=torch.bfloat16):
    return SoftCrossEntropy.apply(y, matrix, chances, weights, terms_of, dtype)
