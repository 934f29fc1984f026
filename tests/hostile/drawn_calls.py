"""The calls that drawn programs are made of, each a text with places to fill.

Before the text stands what its tensor `x` has to be: f a float, i an integer, b a boolean, n a
number, a anything. Places: x; y, u: others of its kind, of a shape that goes with it; f, i, b: any
float, integer, boolean; o: any; s: of no dimension; d, e: dimensions; j: indices along d; k: a
number of Python; m: a small one; p: 1 to 3; z: 0 to 2; c: an integer; t: True or False; w: a dtype;
r: a float dtype; g: an integer dtype.
"""

from __future__ import annotations

POINTWISE = """
n x + y
n x - y
n x * y
f x / y
n x * k
n x + k
n k - x
n x / k
n k / x
n x // k
n x % k
i x // 3
i x // -3
i x % -3
i x.remainder(-5)
i torch.fmod(x, -3)
i torch.div(x, 3, rounding_mode='trunc')
i torch.div(x, -4, rounding_mode='floor')
i torch.div(x, (y * 2 + 1), rounding_mode='floor')
i x / (y * 2 + 1)
i x % (y * 2 + 1)
f torch.div(x, y, rounding_mode='floor')
f torch.div(x, y, rounding_mode='trunc')
f x.remainder(y)
f torch.fmod(x, y)
f x.fmod(k)
f x.remainder(k)
n x + s
n s * x
n x.add(y, alpha=c)
n x.sub(y, alpha=c)
n torch.rsub(x, y)
f x.addcmul(y, u, value=k)
f x.addcdiv(y, u, value=k)
f torch.lerp(x, y, k)
f torch.lerp(x, y, u)
f x.exp()
f x.expm1()
f x.exp2()
f x.log()
f x.log1p()
f x.log2()
f x.abs().log10()
f x.sin()
f x.cos()
f x.tan()
f x.tanh()
f x.sigmoid()
f x.sinh()
f x.cosh()
f x.asinh()
f x.atan()
f x.clamp(-1, 1).acos()
f x.clamp(-1, 1).asin()
f x.clamp(-1, 1).atanh()
f x.erf()
f x.erfc()
f x.sqrt()
f x.rsqrt()
f x.reciprocal()
f x.pow(2)
f x.pow(-1)
f x.pow(0.5)
f x.pow(k)
f x.abs().pow(y)
f torch.pow(k, x)
i x.pow(2)
i torch.pow(2, x)
f torch.atan2(x, y)
f torch.hypot(x, y)
f torch.copysign(x, y)
f torch.copysign(x, k)
f torch.nextafter(x, y)
f torch.logaddexp(x, y)
f torch.logaddexp2(x, y)
f torch.xlogy(x, y)
f torch.special.xlog1py(x, y)
f torch.special.entr(x)
f torch.sinc(x)
f torch.logit(x, eps=0.1)
f torch.heaviside(x, y)
f torch.ldexp(x, i)
f torch.frexp(x)[0]
f torch.special.expit(x)
f x.floor()
f x.ceil()
f x.round()
f x.round(decimals=1)
f x.trunc()
f x.frac()
n x.sign()
f x.sgn()
n x.abs()
n -x
n x.neg()
n x.square()
n x.positive()
f x.signbit()
f x.isnan()
f x.isinf()
f x.isposinf()
f x.isfinite()
f x.nan_to_num()
f x.nan_to_num(k, k, k)
n x.clamp(k, k)
n x.clamp(min=k)
n x.clamp(max=m)
n x.clamp(min=y)
n x.clamp(y, u)
n torch.maximum(x, y)
n torch.minimum(x, y)
f torch.fmax(x, y)
f torch.fmin(x, y)
n x == y
n x < y
n x >= k
n x != k
n x <= s
n torch.where(x > k, x, y)
n torch.where(b, x, k)
n torch.where(b, k, x)
n torch.where(x.isnan(), 0, x)
a torch.where(b, x, y)
n x.masked_fill(b, k)
n x.masked_fill(x > y, s)
b x & y
b x | y
b x ^ y
b ~x
b x.logical_not()
b x.logical_xor(y)
a x.logical_and(y)
a x.logical_or(o)
b x + k
b x * c
b x + y
b x.sum()
b x.cumsum(d)
b x.float().mean()
b x.any(d)
b x.all(d, keepdim=t)
b x.argmax(d) if False else x.int().argmax(d)
b torch.where(x, 1, 0)
b torch.where(x, 1.5, 0)
i x & y
i x | c
i x ^ y
i ~x
i x << p
i x >> p
i torch.gcd(x, y)
i torch.lcm(x % 16, y % 16)
i x.bitwise_left_shift(p)
i x.bool()
i x * 100
i x + 127
i x * 1.5
i x.float() / y.abs().clamp(min=1)
i x.sqrt()
i x.exp()
i x.sigmoid()
i x.to(w)
f x.to(w)
b x.to(w)
f x.to(r)
f x.to(r).to(torch.float32)
f x.half().float()
f x.bfloat16().float()
f x.clamp(-100, 100).to(g)
f x.type_as(o)
f x.float()
f x.double()
f x.long()
f x.clone()
f x.detach()
f x.contiguous()
a torch.zeros_like(x)
a torch.ones_like(x, dtype=w)
a torch.full_like(x, c)
n torch.full_like(x, k)
n x.new_full((2, 3), k)
n x.new_ones(3)
f F.relu(x)
f F.relu6(x)
f F.leaky_relu(x, k)
f F.elu(x, alpha=k)
f F.celu(x)
f F.selu(x)
f F.gelu(x)
f F.gelu(x, approximate='tanh')
f F.silu(x)
f F.mish(x)
f F.softplus(x, beta=2)
f F.softplus(x, threshold=1)
f F.softsign(x)
f F.hardtanh(x, -0.5, 0.5)
f F.hardswish(x)
f F.hardsigmoid(x)
f F.hardshrink(x)
f F.softshrink(x)
f F.tanhshrink(x)
f F.threshold(x, 0.1, k)
f F.logsigmoid(x)
f F.glu(x, d)
f F.prelu(x, x.reshape(-1)[:1])
f F.dropout(x, 0.3, training=False)
f F.dropout(x, 0.0, training=True)
"""

REDUCTIONS = """
n x.sum()
n x.sum(d)
n x.sum(d, keepdim=True)
n x.sum((d, e))
n x.sum(d, dtype=w)
f x.mean()
f x.mean(d, keepdim=t)
f x.mean((d, e), keepdim=t)
i x.float().mean(d)
i x.prod()
n x.prod(d, keepdim=t)
f x.var(d)
f x.var(d, unbiased=False, keepdim=True)
f x.std()
f x.std(d, correction=z)
f torch.var_mean(x, d)[0]
f torch.std_mean(x, d, keepdim=True)[1]
n x.amax(d)
n x.amin((d, e), keepdim=t)
n torch.aminmax(x, dim=d)[0]
n x.max(d)[0]
n x.max(d)[1]
n x.min(d, keepdim=True)[0]
n x.min(d)[1]
n x.max()
n x.min()
n x.argmax(d)
n x.argmin(d, keepdim=t)
n x.argmax()
n x.any(d)
n x.all(d)
n x.all()
n x.any(d, keepdim=True)
n x.count_nonzero(d)
f x.nansum(d)
f x.nanmean(d)
f x.norm()
f x.norm(1, d)
f x.norm(float('inf'), d, keepdim=t)
f x.norm(0, d)
f x.norm(3, d)
f torch.linalg.vector_norm(x, k, d)
f torch.linalg.vector_norm(x, 2, (d, e))
f x.logsumexp(d)
f x.logsumexp((d, e), keepdim=True)
f x.softmax(d)
f x.log_softmax(d)
f x.softmax(d, dtype=torch.float32)
f F.softmin(x, d)
f F.normalize(x, dim=d)
f F.normalize(x, p=1, dim=d)
n x.cumsum(d)
n x.cumsum(d, dtype=w)
n x.cumprod(d)
n x.cummax(d)[0]
n x.cummax(d)[1]
n x.cummin(d)[0]
f x.logcumsumexp(d)
n x.flip(d).cumsum(d).flip(d)
n x.diff(dim=d)
n x.diff(n=2, dim=d)
n x.sort(d)[0]
n x.sort(d, descending=True, stable=True)[1]
n x.argsort(d, stable=True)
n x.topk(1, d)[0]
n x.topk(min(2, x.shape[d]), d, largest=t)[0]
f x.median(d)[0]
n x.kthvalue(1, d)[0]
f x.quantile(0.3, d) if x.dtype in (torch.float32, torch.float64) else x
n x.trace() if x.dim() == 2 else x
f torch.trapezoid(x, dim=d)
f F.layer_norm(x, x.shape[-1:])
f F.layer_norm(x, x.shape[-1:], y.reshape(-1)[:1].expand(x.shape[-1]), None, 1e-3)
f F.layer_norm(x, x.shape[-2:])
f F.rms_norm(x, x.shape[-1:])
f F.rms_norm(x, x.shape[-1:], eps=1e-3)
f F.group_norm(x, 1)
f F.instance_norm(x)
f F.batch_norm(x, None, None, training=True)
f F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), training=t, momentum=0.3)
f F.local_response_norm(x, 2)
f F.cosine_similarity(x, y, dim=d)
f F.pairwise_distance(x, y)
f torch.dist(x, y)
f torch.cdist(x, y)
f torch.renorm(x, 2, d, 1.0)
f F.mse_loss(x, y)
f F.mse_loss(x, y, reduction='none')
f F.l1_loss(x, y, reduction='sum')
f F.smooth_l1_loss(x, y, beta=0.5)
f F.huber_loss(x, y, delta=0.7, reduction='none')
f F.kl_div(x.log_softmax(d), y.softmax(d), reduction='batchmean')
f F.kl_div(x, y, log_target=True)
f F.binary_cross_entropy_with_logits(x, y.sigmoid().detach())
f F.binary_cross_entropy_with_logits(x, b.to(x.dtype), pos_weight=x.new_full((), 2.0))
f F.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach(), reduction='none')
f F.soft_margin_loss(x, y.sign().detach())
f F.hinge_embedding_loss(x, y.sign().detach(), margin=0.5)
f F.margin_ranking_loss(x, y, u.sign().detach(), margin=0.2)
f F.cosine_embedding_loss(x, y, x.new_ones(x.shape[0]))
f F.triplet_margin_loss(x, y, u, swap=t)
f F.poisson_nll_loss(x, y.abs().detach())
f F.gaussian_nll_loss(x, y, u.abs() + 0.1)
f F.cross_entropy(x, y.softmax(1), label_smoothing=0.1)
f F.cross_entropy(x, x.detach().argmax(1))
f F.cross_entropy(x, x.detach().argmin(1), label_smoothing=0.2, reduction='none')
f F.cross_entropy(x, x.detach().argmax(1), ignore_index=z)
f F.cross_entropy(x, x.detach().argmax(1), x.new_ones(x.shape[1]) * 0.5, ignore_index=1)
f F.nll_loss(x.log_softmax(1), y.detach().argmax(1), reduction='sum')
f F.nll_loss(x, y.detach().argmax(1), reduction='none', ignore_index=0)
f F.multi_margin_loss(x, y.detach().argmax(1))
f F.multilabel_soft_margin_loss(x, b.to(x.dtype))
"""
