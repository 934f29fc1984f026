"""The calls that drawn programs are made of: views and what else moves elements, products and
windows, writes in place. `drawn_calls.py` says how they are written."""

from __future__ import annotations

VIEWS = """
a x.T
a x.mT
a x.t()
a x.transpose(d, e)
a x.permute(*reversed(range(x.dim())))
a x.movedim(d, e)
a x.flip(d)
a x.flip((d, e))
a x.rot90(p, (d, e))
a x.roll(p, d)
a x.roll((1, -1), (d, e))
a x.roll(2)
a x.unsqueeze(d)
a x.squeeze()
a x.squeeze(d)
a x.reshape(-1)
a x.reshape(x.shape[0], -1)
a x.reshape(-1, 1)
a x.view(-1)
a x.flatten(d, e)
a x.unflatten(d, (-1, 1))
a x.unflatten(d, (2, -1))
a x.expand(2, *x.shape)
a x.expand(p, *x.shape)
a x.unsqueeze(d).expand(*[2 if n == 1 else n for n in x.unsqueeze(d).shape])
a x.expand_as(y)
a x.broadcast_to(y.shape)
a x.repeat(2, *[1] * x.dim())
a x.repeat(*[2] * x.dim())
a x.repeat_interleave(2, d)
a x.repeat_interleave(p)
a x.tile(p)
a x.narrow(d, 1, x.shape[d] - 1)
a x.narrow(d, 0, 1)
a x.select(d, -1)
a x.select(d, 0)
a x[..., ::2]
a x[1:]
a x[:-1]
a x[-2:]
a x[:, 1:]
a x[:, ::3]
a x[None, ..., None]
a x[..., -1]
a x[0]
a x[5:2]
a x.unfold(d, 2, 1)
a x.unfold(d, 3, 2)
a x.diagonal()
a x.diagonal(p, d, e)
a x.diagonal(-1)
a torch.diag_embed(x)
a torch.diag(x)
a x.tril()
a x.triu(1)
a x.tril(-1)
a x.as_strided((2, 2), (1, 1))
a x.as_strided((2, 3), (2, 1), 1)
a x.as_strided((3,), (0,))
a x.chunk(2, d)[0]
a x.chunk(3, d)[-1]
a x.split(2, d)[-1]
a x.tensor_split(3, d)[1]
a x.unbind(d)[-1]
a torch.cat([x, y], d)
a torch.cat([x, x[..., :1]], -1)
a torch.stack([x, y], d)
a torch.stack([x, x.flip(d)], e)
a torch.hstack([x, y])
a torch.cat([x.flatten(), o.flatten()])
a F.pad(x, (1, 2))
a F.pad(x, (-1, 2), value=1)
n F.pad(x, (1, 0, 0, 2), value=k)
f F.pad(x, (1, 1), mode='reflect')
f F.pad(x, (2, 1), mode='replicate')
f F.pad(x, (1, 1), mode='circular')
a torch.meshgrid(x.flatten(), y.flatten(), indexing='ij')[0]
a x.swapaxes(d, e).contiguous()
a x.clone(memory_format=torch.contiguous_format)
a torch.block_diag(x, y)
a torch.kron(x, y)
n torch.vander(x.flatten()[:4])
a x.index_select(d, j)
a x.take_along_dim(x.argsort(d, stable=True), d)
a torch.gather(x, d, x.argsort(d, stable=True))
a torch.gather(x, d, x.long().abs() % x.shape[d])
a x[j]
a x[-1 - j]
a x[:, i.reshape(-1).long() % x.shape[1]]
a x[..., (i.reshape(-1).long() % x.shape[-1])[:, None]]
a x[i.reshape(-1).long() % x.shape[0], -1 - i.reshape(-1).long() % x.shape[1]]
a torch.take(x, i.long() % x.numel())
n torch.scatter(x, d, x.long().abs() % x.shape[d], k)
n torch.where(b, x, x.flip(d))
n x.scatter_add(d, y.long().abs() % x.shape[d], u)
n x.scatter_reduce(d, x.long().abs() % x.shape[d], y, 'amax', include_self=t)
f x.scatter_reduce(d, x.long().abs() % x.shape[d], y, 'mean', include_self=t)
n x.index_add(d, j, x.index_select(d, j))
n x.index_add(d, j, x.index_select(d, j), alpha=2)
n x.index_copy(d, j[:1], x.index_select(d, j[:1]))
n x.index_fill(d, j, k)
n x.masked_scatter(x > 0, y)
n torch.index_put(x, (j,), x[j], accumulate=True)
n torch.select_scatter(x, y.select(d, 0), d, 0)
n torch.slice_scatter(x, y.narrow(d, 0, 1), d, 0, 1)
n torch.bucketize(x, torch.tensor([-1, 0, 2]))
n torch.searchsorted(x.sort(-1)[0], x)
n torch.isin(x, y)
i F.one_hot(x.long() % 5, 5)
i torch.arange(4) + x.reshape(-1)[0]
i F.embedding(x.long() % f.shape[0], f)
i F.embedding(x.long() % f.shape[0], f, padding_idx=0)
"""

PRODUCTS = """
f x @ y
f x @ y.mT
f x.mT @ y
f x @ x.mT
f x.matmul(y.reshape(-1)[:x.shape[-1]])
f x.reshape(-1).dot(y.reshape(-1))
f torch.outer(x.reshape(-1), y.reshape(-1))
f torch.einsum('...i,...i->...', x, y)
f torch.einsum('ij,kj->ik', x, y)
f torch.einsum('bij,bkj->bik', x, y)
f torch.einsum('ij->ji', x)
f torch.einsum('ii->i', x)
f torch.tensordot(x, y, dims=1)
f torch.addmm(x, y, u, beta=k, alpha=k)
f torch.baddbmm(x, y, u, beta=0.5)
f torch.addmv(x, y, u)
f torch.bmm(x, y)
f x.unsqueeze(0).expand(2, *x.shape) @ y.mT
f torch.linalg.multi_dot([x, x.mT, x])
f F.linear(x, y)
f F.linear(x, y, u)
f F.bilinear(x, x, x.new_ones(2, x.shape[-1], x.shape[-1]))
f (x @ x.mT).softmax(-1) @ x
f (x @ y.mT / x.shape[-1] ** 0.5).softmax(-1) @ y
f (x @ x.mT * 0.3 + torch.full_like(x @ x.mT, -inf).triu(1)).softmax(-1) @ x
f (x @ x.mT + torch.where(b, 0.0, float('-inf'))).softmax(-1).nan_to_num() @ x
f F.scaled_dot_product_attention(x, x, x)
f F.scaled_dot_product_attention(x, x, x, is_causal=True)
f F.scaled_dot_product_attention(x, y, y, attn_mask=b)
f F.scaled_dot_product_attention(x[None], x[None], x[None], scale=k)
f F.conv1d(x[None, None].flatten(2), x.new_ones(2, 1, 3), padding=p)
f F.conv1d(x.flatten()[None, None], y.flatten()[None, None, :3], stride=p, padding=1)
f F.conv1d(x, y[:, :, :2], padding=1, dilation=2) if x.dim() == 3 else x
f F.conv2d(x[None, None], x.new_ones(3, 1, 2, 2) * 0.3, padding=p, stride=z + 1)
f F.conv2d(x[None], x.new_ones(x.shape[0], 1, 3, 3) * 0.2, groups=x.shape[0], padding=1)
f F.conv_transpose2d(x[None, None], x.new_ones(1, 2, 2, 2), stride=2, output_padding=1)
f F.conv_transpose1d(x.flatten()[None, None], x.new_ones(1, 2, 3) * 0.5, stride=p, padding=1)
f F.conv3d(x[None, None], x.new_ones(1, 1, 2, 2, 2), padding=1)
f F.max_pool1d(x, 2)
f F.max_pool1d(x, 3, 2, padding=1, ceil_mode=t)
f F.max_pool2d(x[None], 2, ceil_mode=t)
f F.max_pool2d(x[None], 3, 2, padding=1, dilation=1)
f F.max_pool2d(x[None], 2, 1, return_indices=True)[1]
f F.avg_pool1d(x, 2, ceil_mode=t)
f F.avg_pool2d(x[None], 2, ceil_mode=t, count_include_pad=t, padding=1)
f F.avg_pool2d(x[None], (2, 1), divisor_override=3)
f F.adaptive_avg_pool1d(x, p)
f F.adaptive_avg_pool2d(x[None], (p, 2))
f F.adaptive_max_pool1d(x, p)
f F.lp_pool1d(x.abs() + 1, 2, 2)
f F.interpolate(x[None], scale_factor=2.0, mode='nearest') if x.dim() == 2 else x
f F.interpolate(x[(None,) * (4 - x.dim())], size=(5, 3), mode='bilinear', align_corners=t)
f F.interpolate(x[(None,) * (4 - x.dim())], scale_factor=(0.5, 1.7), mode='bilinear')
f F.interpolate(x[(None,) * (4 - x.dim())], size=(3, 7), mode='bicubic')
f F.interpolate(x[(None,) * (4 - x.dim())], size=(3, 7), mode='area')
f F.interpolate(x[(None,) * (4 - x.dim())], size=(3, 7), mode='nearest-exact')
f F.interpolate(x[None, None].flatten(2), size=5, mode='linear')
f F.unfold(x[(None,) * (4 - x.dim())], 2, padding=1)
f F.pixel_shuffle(x.reshape(1, -1, 1, 1)[:, :4], 2)
f F.pixel_unshuffle(F.pad(x[..., :1, :1], (0, 1, 0, 1)), 2)
f torch.cross(x[..., :3], y[..., :3], dim=-1)
f torch.vander(x.flatten()[:3], 3)
f torch.cumulative_trapezoid(x, dim=d)
f torch.linalg.matrix_norm(x)
f torch.logdet(x @ x.mT + torch.eye(x.shape[-2], dtype=x.dtype))
"""

WRITES = """
n x.add_(y)
n x.mul_(k)
n x.sub_(s)
n x.copy_(y)
n x.fill_(k)
n x.zero_()
n x[1:].add_(1)
n x[:-1].copy_(x[1:].clone())
n x[..., ::2].mul_(2)
n x[0].copy_(y[0])
n x.t().add_(y.t())
n x.transpose(d, e).copy_(y.transpose(d, e))
n x.select(d, 0).zero_()
n x.narrow(d, 0, 1).add_(k)
n x.narrow(d, 0, 1).copy_(y.narrow(d, 0, 1))
n x.diagonal().fill_(k)
n x.diagonal().add_(1)
n x.reshape(-1)[:2].mul_(3)
n x.view(-1)[1:].add_(x.view(-1)[:-1].clone())
n x.view(-1)[::3].zero_()
n x.masked_fill_(b, k)
n x.masked_fill_(x > y, s)
n x.index_fill_(d, j, k)
n x.index_add_(d, j, x.index_select(d, j) * 2)
n x.index_copy_(d, j[:1], x.index_select(d, j[:1]) + 1)
n x.scatter_(d, x.long().abs() % x.shape[d], k)
n x.scatter_add_(d, x.long().abs() % x.shape[d], y)
n x.index_put_((j,), x[j] + 1, accumulate=True)
n x.masked_scatter_(x > 0, y)
n x.clamp_(k, k)
n x.clamp_(min=0)
n x.neg_()
n x.abs_()
f x.exp_()
f x.sigmoid_()
f x.tanh_()
f x.div_(k)
f x.pow_(2)
f x.lerp_(y, 0.3)
f x.addcmul_(y, u, value=0.5)
f F.relu_(x)
f F.leaky_relu_(x, 0.2)
f x.round_()
f x.nan_to_num_()
n x.cumsum_(d)
n x.tril_()
n x.fill_diagonal_(c)
n x.unsqueeze_(d)
n x.t_()
n x.squeeze_()
n x.transpose_(d, e)
n x[..., 0] = k
n x[1] = y[0]
n x[x > 0] = k
n x[:, 1:] = y[:, :-1]
n x[j] = k
n x[j] += 1
n x[b] = 0
n x[..., None][..., 0] += y
n x += 1
n x *= y
n x //= 3
i x.remainder_(3)
i x <<= 1
i x |= y
b x |= y
b x &= y
b x.logical_not_()
b x.fill_(True)
b x[0] = y[-1]
n x.flatten()[0] = 5
n x.unfold(d, 2, 2).mul_(2)
n x.as_strided((2,), (1,)).add_(1)
n x.unbind(d)[0].add_(2)
n x.chunk(2, d)[-1].mul_(y.chunk(2, d)[-1])
n x.expand(*x.shape).sub_(1)
n x.permute(*reversed(range(x.dim()))).add_(2)
n torch.add(x, y, out=x)
n x.put_(j[:1], x.flatten()[:1])
n x.bernoulli_(0.0)
n x.set_(y.clone())
n x.data.add_(1)
n x.detach().mul_(2)
"""
