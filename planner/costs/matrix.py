"""Products of tiles: what they cost on tensor cores, and what they stage in shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import Config
from ..graph.graph import Graph
from ..graph.ops import Contraction, bound, row
from ..tiles.blocks import Blocks
from ..tiles.descriptors import LONGEST
from ..tiles.instructions import ONES, WARPGROUP, Loops, Mma, OnesMma, TileLoad, TileStore
from ..tiles.program import TileProgram, by_body
from .beside_products import moved_between, read_behind
from .chains import feed_each_other
from .device import DeviceProfile, Waits
from .live_tiles import TAPS, loaded_neighbours
from .registers import most
from .tile_cache import once
from .traffic import turns
from .vendor_products import alignment, operand

_RATE = {"float16": 1.0, "bfloat16": 1.0, "float32": 0.5}
"""By operand dtype, times the 16-bit rate; float32 stands for tf32."""


@once
def mmas(program: TileProgram) -> list[tuple[Mma, float]]:
    """Every mma, and how often one program computes it."""
    return [(each, turns(loops, program.blocks)) for each, loops in _mmas(program)]


@by_body
def _mmas(program: TileProgram) -> list[tuple[Mma, Loops]]:
    return [(each, loops) for each, loops in program.evaluations() if isinstance(each, Mma)]


@dataclass(frozen=True, slots=True)
class Products:
    """The matrix products of one launch. flops: operations, padding included; tensor: those of the
    tensor cores at the rate of 16 bits; ieee: those in float32, without tensor cores; slower: the
    sum of those weights below that the config alone decides; ahead: turns of a loop whose loads are
    under way at once; chain: of products that feed each other, None of others; full: results take
    most of the registers, and nothing but products is summed; streams: products of few rows, which
    one tile spans, by matrices, none of another's result; walks: a program begins to load its next
    tile before it stores one; read_behind: bytes that such programs load behind their products, of
    all of them; moved_between: bytes that all programs load and store between one product and the
    next of a loop around both; spilled: bytes that all programs spill in each turn of their loops;
    reduces: something is reduced besides the products."""

    flops: float
    tensor: float
    ieee: float
    slower: float
    ahead: int = 1
    chain: Chain | None = None
    full: bool = False
    streams: bool = False
    walks: bool = False
    read_behind: float = 0.0
    moved_between: float = 0.0
    spilled: float = 0.0
    reduces: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Products of which each waits for the one before, in one program. tensor: operations at the
    rate of 16 bits, with those that several warps do alike; repeated: how many warps do the same of
    what is computed besides; waits: turns of its loops for whose loads it waits, fewer where more
    are under way at once; steps: products in all turns, those that each warp does for itself
    counted for more."""

    tensor: float
    repeated: float
    waits: float
    steps: float


def products_of(
    program: TileProgram, config: Config, programs: int, spills: int = 0
) -> Products | None:
    """The products of a program, None where no contraction runs as one. spills: bytes a thread that
    are expected of it."""
    found = mmas(program)
    if not found:
        return None
    flops = tensor = ieee = 0.0
    for mma, times in found:
        work = 2.0 * _volume(mma, program.blocks) * times * programs
        flops += work
        if mma.ieee:
            ieee += work
        else:
            tensor += work / _RATE[program.nest.fold(mma.value).operand]
    ones = _ones(program) * programs
    flops, tensor = flops + ones, tensor + ones
    slower = _slower([mma for mma, _ in found], program.blocks, config) + _slower_loops(program)
    slower += _ROWS_ANYWHERE * _reads_anywhere(program)
    ahead = 1 if config.layout.holds else max(1, config.num_stages - 1)
    chain = _chain(program, config, found) if feed_each_other(program) else None
    if chain is None:
        slower += _WALKING_BESIDE * (config.programs > 0 and len(found) > 1)
    reduces = any(program.nest.fold(value).times is None for value in program.reductions)
    full = not reduces and _is_full(program, config)
    looped = {each.value for each, loops in program.evaluations() if loops}
    streams = all(mma.value in looped and _streams(program, mma) for mma, _ in found)
    walks = config.programs > 0 and ahead > 1 and len(found) == 1
    slower += _TALL * (walks and any(_is_tall(mma, program.blocks) for mma, _ in found))
    behind = read_behind(program) * programs if walks else 0.0
    between = moved_between(program) * programs
    felt = spills if chain or len(loaded_neighbours(program)) >= TAPS else 0
    spilled = 0.0 if reduces else _spilled(program, config, felt) * programs
    return Products(
        flops,
        tensor,
        ieee,
        slower,
        ahead,
        chain,
        full,
        streams,
        walks,
        behind,
        between,
        spilled,
        reduces,
    )


def _spilled(program: TileProgram, config: Config, spills: int) -> float:
    """Bytes that a program spills in every turn of a loop: of products that feed each other, or
    that multiply convolutions, what is expected of all, `spills` a thread, for each turn has all of
    them."""
    threads = 32 * config.num_warps
    results = [program.tile(each.value) / threads for each, loops in _mmas(program) if loops]
    over = spills >= SURE or sum(results) + _OTHERWISE > most(config.num_warps)
    return threads * max(4.0 * min(results, default=0.0) * over, spills)


def _streams(program: TileProgram, mma: Mma) -> bool:
    """Whether few rows are multiplied, all of them by every program: then there is nothing to a
    product but to read the matrix. Products of a batch, or of parts of a sum, were not timed, and
    without a loop the matrix passes the registers: 1.3 times as long where it is large."""
    nest, fold = program.nest, program.nest.fold(mma.value)
    assert fold.times is not None
    shared = nest.live[fold.source] & nest.live[fold.times] - {mma.k}
    # Along an axis that varies there may be more rows than one program multiplies.
    sides = (mma.rows, mma.columns)
    at_once = any(nest.axes[a].extent <= program.blocks.sizes[a] for a in sides)
    return mma.few and at_once and all(nest.axes[a].extent == 1 for a in shared)


@once
def _reads_anywhere(program: TileProgram) -> bool:
    """Whether rows of an operand start where no copy to shared memory can: on 2 bytes."""
    loads = program.nest.loads
    return any(alignment(loads[v].type) < _COPIED for v in program.operands & loads.keys())


def _is_full(program: TileProgram, config: Config) -> bool:
    largest = max(map(program.elements, program.mmas))
    return largest >= _MANY * 32 * config.num_warps


def _is_tall(mma: Mma, blocks: Blocks) -> bool:
    return blocks.sizes[mma.rows] > blocks.sizes[mma.columns]


@once
def _ones(program: TileProgram) -> float:
    """Operations of one program's sums that are products with ones."""
    found = 0.0
    for each, loops in program.evaluations():
        if isinstance(each, OnesMma):
            times = turns(loops, program.blocks)
            found += 2.0 * ONES * program.elements(each.source) * times
    return found


def _chain(program: TileProgram, config: Config, found: Sequence[tuple[Mma, float]]) -> Chain:
    """Triton gives all warps rows of a product that feeds another, so that its rows are reduced
    within a warp: where there are fewer rows, several warps do the same."""
    tensor, most, steps, blocks = 0.0, 1.0, 0.0, program.blocks
    for number, (mma, times) in enumerate(found):
        m, n = blocks.sizes[mma.m], blocks.sizes[mma.n]
        grouped, feeds = mma.suits_warpgroup, number < len(found) - 1
        rows = 16.0 * config.num_warps / m if feeds and (grouped or m >= n) else 1.0
        columns = 8.0 * config.num_warps / n if not grouped and m < n else 1.0
        repeated = max(1.0, rows, columns)
        rate = _IEEE if mma.ieee else _RATE[program.nest.fold(mma.value).operand]
        alone = 1.0 if grouped else _WARP_ALONE
        tensor += 2.0 * _volume(mma, blocks) * times / rate * repeated * alone
        most = max(most, repeated)
        steps += times * (1.0 if grouped else _STEP_ALONE)
    loading = {
        tuple(map(id, loops)): loops
        for each, loops in program.walk()
        if loops and isinstance(each, TileLoad)
    }
    every = sum(turns(loops, blocks) for loops in loading.values())
    waits = every * (_AT_HAND if config.num_stages == 1 else 1.0 / (config.num_stages - 1))
    return Chain(tensor, most, waits, steps)


# How much slower than its work alone a kernel runs: exp of a sum of these, fitted by least squares
# to 675 kernels of eight workloads timed on an H200, Triton 3.6. With a workload left out, the best
# of the ten configs it ranks first is within 9% of the best of all in seven of the eight.
_ALWAYS = -0.08  # the best configs are about a tenth faster than the fit says
_POINTERS = 0.068  # operands read by pointers, not by descriptors
_TWO_LOOPS = 0.062  # nested loops not run as one
_HELD_PERSISTENT = 0.367  # a persistent grid without a loop to overlap
_ONE_STAGE, _TWO_STAGES = 0.62, 0.123
_SHORT = 0.098  # for each halving of the summed block below 64
_SMALL = 0.138  # for each halving of the reuse of an operand below 96
# Fitted to 501 kernels of five workloads, training steps among them, the weights above kept. With a
# workload left out, the mean regret of the model's choice falls from 28% to 16%.
_THIN = 0.239  # for each halving of the rows of a tile below 16 for each warp
_STORING = 0.281  # stores within a loop
# Fitted like the weight of one stage to 434 kernels of 35 groups of seven models and a training
# step, all others kept. With a workload left out the mean regret falls from 16% to 9%.
_LONG_ROWS = 0.68  # without a loop, operands too long for bulk copies: they pass the registers
_FEW_WARPS = 0.43  # too few for a group that multiplies together
# Likewise to 1,732 kernels: where a model was left out the mean regret falls from 6.6% to 5.9%, of
# those that also reduce rows from 22% to 9%.
_WHOLE, _LITTLE = 0.2, 64  # without a loop nothing is loaded beside the products, if there is much
# Operands whose rows start on 2 bytes: Triton loads them element by element, none ahead. Counted,
# not fitted: a tile's loads then take as long as its products, and neither hides the other.
_ROWS_ANYWHERE, _COPIED = 2.1, 4
# So many results a thread that little else goes on beside them: what follows the loop is not
# hidden, and is felt less the longer the loop. Fitted to 1,625 kernels without reductions, all
# others kept: the mean regret falls from 11.8% to 9.9%.
_FULL, _MANY, _TURNS = 0.2, 128, 8


# A single product: a program waits for its first loads, and once more in every turn of its loop;
# other programs of the SM hide a part of that; what it computes besides overlaps with little.
# Fitted, the weights above kept, to 720 kernels of 43 groups timed on H200s. The workloads left out
# in turn, the correlation within a group rises from 0.43 to 0.72, the mean error falls from 28% to
# 13% and the mean regret from 18% to 5%.
# `_TURN` to `_NOT_AHEAD`, and of programs that walk `_HIDE`, `_HIDDEN` and `_BEHIND`, since to
# 1,301 kernels of 240 groups timed on an H100: a later wave waits in its loop, and little besides.
# Of 102 of these, of nine groups of ResNet-101, UNet and T5, the mean regret was 9.7%, and is 2.7%;
# of 17 groups that the fit had not seen it was 11.8%, and is 11.6%.
# Of `Waits.mma_s`:
_TURN = 0.105  # for each turn of the loop whose loads are not under way ahead
_NEXT = 0.32  # for every later wave besides its turns, shared by the programs of an SM
_NOT_AHEAD = 0.15  # Where no load of a later turn is under way, in exp of it.
_L2_ALONE = 0.23
_BESIDE = 3.1  # times the arithmetic
# The share of it that memory hides, where the SMs are full and memory takes more than twice as long
# as the tensor cores (see `cost._SHORT_ROW`).
_BESIDE_MEMORY = 0.3
# What is computed of an operand counts for more where no product hides it: a warp reads it from
# its registers, which it cannot write before its product is done. Of 39 kernels of GELU before the
# second product of an MLP (ConvNeXt-S and Swin-S, bfloat16, batches of 64, one H200) the model said
# 76% of what was measured, and says 100%.
_BEFORE = 9.0
_ALONE, _CONFIG, _ALONE_SPILLED = -0.408, 0.517, 0.1
# Programs that walk over tiles, fitted to 57 kernels of GELU or relu behind products of
# 12608 x 768 x 3072, 6304 x 1024 x 4096 and 8192 x 4096 x 14336 on an H100 (the best of them are
# in tests/planner/costs/test_walking_products.py). They hide their waits between tiles behind the
# turns of the next tile's loop: from `_HIDE` turns on more than half of them. L2 bounds what is
# left, and of the arithmetic a part is hidden where two share an SM. More rows than columns are
# slower: fewer columns at once take more bytes of shared memory.
_L2_WALKED, _HIDDEN, _TALL, _HIDE = 0.86, 0.56, 0.05, 1.5
# Of several products side by side (gate and up of an MLP) a program that walks hides nothing: the
# results of one tile leave no registers for the next. Of 30 kernels of 8192 x 896 x 4864 and
# 8192 x 2048 x 8192 on an H100 the mean error is 12%, of the 16 that do not walk 6%; counted as
# products of which each waits for the last it was 60%. It is slower, as in exp of this times
# `_CONFIG`: of 120 such kernels of 11 groups the mean regret falls from 8.0% to 1.9%.
_WALKING_BESIDE = 0.24
# What a program that walks reads behind its product (a residual, a gate, what GELU's gradient
# needs) nothing hides where it is alone on its SM, and half of it where two share one: times the
# seconds of those bytes at the memory's rate. Of 46 kernels of 22 groups timed on an H100 the model
# said 79% of what was measured without it, and says 100%.
_BEHIND = 2.2
# What is loaded and stored within a loop around the products' own (a row's columns, or a column's
# rows, one tile after the other) waits for its addresses in every turn, and nothing of it is begun
# ahead: times the seconds of those bytes at the memory's rate. Of two kernels of GELU's gradient
# behind a product and its sum by columns on an H100 (546 us of 4096 x 2048 x 8192, and 2.7 ms of
# 16384 x 2048 x 8192 with a second output) the model said 336 and 1191.
_STORED_BETWEEN = 6.5
# A result that finds no room beside the others is spilled whole, and stored and loaded again in
# every turn of its loop: times the bytes at the rate of L2. Of 24 kernels of two products side by
# side with 256 results a thread timed on an H100 the model said 31% of what was measured, and says
# 97%.
_EVERY_TURN = 2.3
SURE = 40  # Bytes a thread from which a spill is as good as certain.
_OTHERWISE = 25  # Registers of a thread that loops with products take besides their results.
# Few rows: the matrix is read, from memory and through L2, and in each turn of its loop a program
# waits for what is not under way ahead; what takes longest is felt. Fitted to 187 kernels of the
# five products of a layer of Llama-3.2-1B and its head, 2, 8 and 32 rows, one after the other in a
# CUDA graph with launches that overlap, on an H100: the mean error is 11%, and what the model
# chooses takes 5% more than the best on average, 13% at most.
_STREAM_TURN = 0.14  # Of `Waits.mma_s`, for each turn.
_STREAM_L2, _STREAM_NORM = 1.33, 3.2
_STREAM_BUSY = 1.3  # Programs for each SM up to which few of them do not fill the memory's width.
# Several products: a program does one after the other, and what it computes between them; other
# programs of the SM fill its waits. Fitted to 310 kernels of 23 groups timed on H200s; what was
# compiled from text of another day, with slower functions, counted for its order only. The
# workloads left out in turn, the correlation within a group of attention rises from 0.35 to 0.85.
_WARP_ALONE = 1.29  # Times the operations of products that each warp does for itself.
_BETWEEN = 1.7  # Times the arithmetic.
_IEEE = 0.0445  # Products in float32 without tensor cores, times the rate of 16 bits.
# A program's products wait for each other however small they are, and its turns for their loads.
# Fitted, those above kept, to 316 kernels of 60 groups timed on H200s. Of 56 in models that were
# left out the mean regret of the model's choice falls from 59% to 14%.
# The seconds are `Waits.chain_s`, `chain_step_s` and `chain_turn_s`. The first two, `_BETWEEN` and
# `_CHAIN_CONFIG` are rounded from a fit to 420 kernels of 72 groups timed on an H100: with models
# left out in turn the mean error falls from 26% to 22% without reductions, and is 20% with them,
# as before; of pairs in a group that differ by a tenth 85% and 84% are ordered right, where 83% and
# 82% were.
_CHAIN_CONFIG = 0.15  # Of `Products.slower`: a part of it, for a program waits elsewhere too.
_STEP_ALONE = 2.2  # Times those of a product, where each warp does its own.
# Times those of a turn, where nothing is loaded ahead: of 437 kernels of 83 groups timed on an H100
# the mean regret is 9.0% with 3, 11.2% with 2.
_AT_HAND = 3.0
_CHAIN_SPILLED = 0.11  # For each 100 bytes a thread: as in exp of it.
_NORM = (
    3.0  # With it configs that L2 binds are told apart: attention's mean regret is 14%, not 29%.
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The work beside which latency is hidden. programs: blocks of work; resident: those on an SM;
    warps: of all of them; waves: blocks over what the device holds at once; turns: of one program's
    loops; rounds: programs that are started over what the device holds at once."""

    programs: int
    resident: int
    warps: int
    waves: float
    turns: float
    rounds: float = 1.0


def tensor_s(products: Products, device: DeviceProfile) -> float:
    """Seconds of all products at the rate of the vendor's best."""
    plain = 2.0 * device.fma_rate * device.clock_hz * device.sm_count * 0.6
    return products.tensor / device.tensor_flops + products.ieee / plain


def _slower(found: Sequence[Mma], blocks: Blocks, config: Config) -> float:
    pairs = [(blocks.sizes[mma.m], blocks.sizes[mma.n]) for mma in found]
    summed = [blocks.sizes[mma.k] for mma in found]
    reuse = sum(2.0 * m * n / (m + n) for m, n in pairs) / len(pairs)
    thin = sum(_halvings(16 * config.num_warps, max(16, m)) for m, _ in pairs) / len(pairs)
    looped, longest = not config.layout.holds, max(summed)
    return (
        _ALWAYS
        + _POINTERS * (config.access == "pointer")
        + _TWO_LOOPS * (config.layout.is_nested and not config.flatten)
        + _HELD_PERSISTENT * (config.programs > 0 and not looped)
        + _ONE_STAGE * (looped and config.num_stages == 1 and len(found) == 1)
        + _LONG_ROWS * (not looped and longest > LONGEST)
        + _WHOLE * (not looped and longest > _LITTLE)
        + _FEW_WARPS * (config.num_warps < WARPGROUP)
        + _TWO_STAGES * (looped and config.num_stages == 2)
        + _SHORT * _halvings(64, min(summed))
        + _SMALL * _halvings(96, reuse)
        + _THIN * thin
    )


def _slower_loops(program: TileProgram) -> float:
    """By what is stored within loops."""
    return _STORING * any(isinstance(each, TileStore) for each, loops in program.walk() if loops)


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds of a kernel's parts, each by itself and at its best."""

    memory_s: float
    l2_s: float
    tensor_s: float
    arithmetic_s: float
    prologue_s: float
    read_s: float
    """All that is read and written, at the rate of a large copy."""
    behind_s: float
    """What programs that walk read behind their products, at that rate."""
    between_s: float
    """What moves between the products of a loop around them, at that rate."""
    spilled_s: float = 0.0
    """What is spilled in every turn, once, at the rate of L2."""


def seconds(
    products: Products, waiting: Waiting, spills: int, alone: Alone, device: DeviceProfile
) -> float:
    """Seconds of a kernel with matrix products. spills: bytes a thread."""
    if products.streams:
        return _streamed(products, waiting, min(2.0, spills / 100), alone, device)
    if products.chain is not None:
        return _chained(products, products.chain, waiting, min(4.0, spills / 100), alone, device)
    return _single(products, waiting, min(2.0, spills / 100), alone, device.waits)


def _chained(
    products: Products,
    chain: Chain,
    waiting: Waiting,
    spilled: float,
    alone: Alone,
    device: DeviceProfile,
) -> float:
    """What is moved, or what is done, whichever is longer: that is all that the programs of an SM
    do, or one program after the other. What is near each other is felt together."""
    sms, waves = device.sm_count, max(1.0, waiting.waves)
    resident = min(waiting.resident, math.ceil(waiting.programs / sms))
    busy = min(1.0, waiting.programs / sms)
    between_s = sms * _BETWEEN * chain.repeated * alone.arithmetic_s * busy / waiting.programs
    multiply_s = sms * chain.tensor / device.tensor_flops
    # Each quarter of an SM has its own tensor core, and one warp keeps to one quarter.
    quarters = max(1.0, 4.0 * waiting.resident / waiting.warps)
    of = device.waits
    waits_s = chain.steps * of.chain_step_s + chain.waits * of.chain_turn_s + device.latency_s
    one_s = (multiply_s + between_s) * quarters + waits_s
    # While one program multiplies, another does what stands between.
    all_s = resident * math.hypot(multiply_s, between_s)
    moved_s, works_s = max(alone.memory_s, alone.l2_s), waves * math.hypot(one_s, all_s)
    found = math.pow(moved_s**_NORM + works_s**_NORM, 1 / _NORM)
    slower = _CHAIN_CONFIG * products.slower + _CHAIN_SPILLED * spilled
    return found * math.exp(slower) + of.chain_s + _EVERY_TURN * alone.spilled_s


def _streamed(
    products: Products, waiting: Waiting, spilled: float, alone: Alone, device: DeviceProfile
) -> float:
    busy = min(1.0, _STREAM_BUSY * waiting.programs / device.sm_count)
    turns = max(1.0, waiting.waves) * waiting.turns / products.ahead
    parts = (
        alone.read_s / busy,
        _STREAM_L2 * alone.l2_s,
        alone.tensor_s,
        alone.arithmetic_s,
        _STREAM_TURN * turns * device.waits.mma_s,
    )
    found = math.pow(sum(each**_STREAM_NORM for each in parts), 1 / _STREAM_NORM)
    return found * math.exp(_ALONE_SPILLED * spilled) + _EVERY_TURN * alone.spilled_s


def _single(
    products: Products, waiting: Waiting, spilled: float, alone: Alone, waits: Waits
) -> float:
    later = max(0.0, waiting.waves - 1)
    if products.walks:
        later = max(later * _HIDE / (_HIDE + waiting.turns), waiting.rounds - 1)
    later /= max(1, waiting.resident)
    loading = _TURN * waiting.turns / products.ahead
    waits_s = waits.mma_s * (1 + loading + later * (_NEXT + loading))
    least_s = max(alone.memory_s, alone.tensor_s)
    together = products.walks and waiting.resident > 1
    by_memory = _BESIDE_MEMORY * (alone.memory_s > 2 * alone.tensor_s and waiting.waves >= 1)
    hidden = 1 - _HIDDEN if together else by_memory
    beside = _BESIDE * (1 - hidden)
    worked_s = beside * alone.arithmetic_s + _BEFORE * _unhidden_s(alone)
    base = max(least_s, (_L2_WALKED if products.walks else _L2_ALONE) * alone.l2_s)
    full = _FULL * (products.full or together) * min(1.0, _TURNS / max(1.0, waiting.turns))
    slower = _ALONE + _CONFIG * (products.slower + full) + _ALONE_SPILLED * spilled
    if not products.reduces:
        slower += _NOT_AHEAD * (products.ahead == 1 and waiting.turns > 0)
        turned_s = waiting.waves * waiting.turns * _turn_s(products, waiting.resident, waits)
        base = max(base, turned_s / math.exp(slower))
    base += worked_s + waits_s + _BEHIND * alone.behind_s / waiting.resident
    resident = min(waiting.resident, max(1.0, waiting.resident * waiting.waves))
    base += _STORED_BETWEEN * alone.between_s / resident
    return max(least_s, base * math.exp(slower)) + _EVERY_TURN * alone.spilled_s


def _turn_s(products: Products, resident: int, waits: Waits) -> float:
    """Seconds of one turn of all programs of an SM that nothing hides: barriers, and copies that
    are begun."""
    if products.walks:
        return max(waits.walked_turn_least_s, waits.walked_turn_s * resident)
    return waits.mma_turn_s * resident


def _unhidden_s(alone: Alone) -> float:
    """Seconds of a computed operand while no product runs: one warp computes while another
    multiplies, the less so the longer it takes beside the products."""
    both_s = alone.prologue_s + alone.tensor_s
    return alone.prologue_s * alone.prologue_s / both_s if both_s else 0.0


def _halvings(usual: float, found: float) -> float:
    return max(0.0, math.log2(usual / found))


def _volume(mma: Mma, blocks: Blocks) -> int:
    return blocks.elements((mma.m, mma.n, mma.k))


def fastest_s(graph: Graph, node: int, device: DeviceProfile) -> float:
    """Seconds below which nothing here predicts a contraction of a graph, whoever runs it."""
    this = graph.nodes[node]
    contraction, named = row(this), bound(this)
    assert isinstance(contraction, Contraction)
    left = graph.nodes[operand(named[contraction.left])].type
    assert this.type is not None
    assert left is not None
    rate = device.tensor_flops * _RATE.get(left.dtype, 1.0)
    least = math.exp(_ALWAYS) * min(1.0, device.generated)
    return 2.0 * this.type.numel * left.shape[-1] / rate * least
