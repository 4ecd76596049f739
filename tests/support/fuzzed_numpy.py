"""Small random programs of plain numpy: over dtypes, scalars of Python's, numbers, options, and changes in place."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

ARGUMENTS: dict[str, Any] = {
    "u": np.array([[1, 2, 250], [0, 7, 31]], np.uint8),
    "a": np.array([[3, -4, 100], [0, 1, -128]], np.int8),
    "i": np.array([[5, -6, 7], [0, 2, 1]], np.int32),
    "n": np.array([[2, -3, 4], [0, 11, 1]], np.int64),
    "b": np.array([[True, False, True], [False, False, True]]),
    "f": np.array([[0.5, -1.5, 2.0], [0.0, 3.25, 1.0]], np.float32),
    "x": np.array([[0.3, -1.2, 2.6], [0.0, 1.7, -0.4]]),
    "z": np.array([[0.5 + 1j, -1.0, 2j], [1.0 - 1j, 0.25, 3.0]]),
    "d": np.array(1.5),
    "e": np.uint8(3),
    "g": np.float32(0.75),
    "t": 0.7,
}
ARRAYS = "uainbfxz"
NUMBERS = [
    "d",
    "e",
    "g",
    "t",
    "0",
    "1",
    "2",
    "3",
    "-1",
    "200",
    "300",
    "-129",
    "0.5",
    "2.5",
    "True",
    "1j",
    "np.int64(2)",
]
UNARY = """
negative absolute sign square sqrt exp sin cos tanh floor ceil rint trunc conj real imag isfinite isnan signbit invert
logical_not reciprocal positive angle sort argsort ravel cumsum cumprod diff isreal fliplr flipud flip transpose round
count_nonzero squeeze atleast_3d nan_to_num ediff1d nancumsum trace diagonal triu tril diag arcsinh log1p expm1 fabs
cbrt deg2rad bitwise_count iscomplex any all ptp argmax argmin nanargmax median sinc exp2
""".split()
BINARY = """
add subtract multiply true_divide floor_divide remainder fmod power maximum minimum fmax fmin less less_equal greater
greater_equal equal not_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor left_shift
right_shift hypot arctan2 copysign logaddexp gcd lcm heaviside float_power divmod ldexp isclose
""".split()
OPERATORS = "+ - * / // % ** < <= > >= == != & | ^ << >>".split()
CHANGES = "+ - * / // % ** & | ^ << >>".split()
REDUCING = "sum prod mean std var max min any all argmax argmin nansum nanmax nanprod ptp median average".split()
JOINING = "concatenate stack vstack hstack dstack column_stack".split()
TWO = (
    """
np.dot({0}, {1}.T); np.inner({0}, {1}); np.outer({0}, {1}); np.vdot({0}, {1}); np.tensordot({0}, {1})
{0} @ {1}.T; np.kron({0}, {1}); np.append({0}, {1}); np.append({0}, {1}, axis=0); np.where({0}, {1}, {0})
np.einsum("ij,ij->i", {0}, {1}); np.searchsorted(np.sort({0}[0]), {1}); np.digitize({0}, np.sort({1}[1]))
np.isin({0}, {1}); np.array_equal({0}, {1}); np.interp({0}, np.arange(3), {1}[0]); np.polyval({0}[0], {1})
np.insert({0}, 1, {1}[0], axis=0); np.select([{0} > 0], [{1}], 1); np.take({0}, {1}[0] != 0); np.cross({0}, {1})
np.allclose({0}, {1}); np.vecdot({0}, {1}); np.trapezoid({0}, {1}, axis=1); np.convolve({0}[0], {1}[1])
np.multiply.outer({0}[0], {1}[1]); np.choose({0} == 0, [{0}, {1}]); np.union1d({0}, {1}); np.copyto({0}, {1})
np.cov({0}, {1}); np.average({0}, weights={1}); np.piecewise({0}, [{1} > 0], [lambda v: v * 2, 3])
""".strip()
    .replace("\n", ";")
    .split(";")
)
ONE = (
    """
{0}[0]; {0}[:, 1]; {0}[..., ::2]; {0}[[0, 1]]; {0}[-1, [0, 2]]; {0}[[5]]; {0}[7]; {0}[None]; {0}.T
{0}.reshape(3, 2); {0}.flatten(); {0}.ravel(); {0}.copy(); {0}.sum(); {0}.mean(axis=0); {0}.astype(float)
{0}.astype(complex); {0}.astype(np.int64); {0}.real; {0}.imag; {0}.conj(); {0}.squeeze(); {0}.cumsum(axis=1)
{0}.max(axis=1, keepdims=True); {0}.swapaxes(0, 1); np.reshape({0}, -1); np.take({0}, [0, 2], axis=1)
np.take({0}, [9]); np.take({0}, -3, mode="clip"); np.repeat({0}, 2, axis=0); np.tile({0}, 2); np.roll({0}, 1)
np.rot90({0}); np.pad({0}, 1); np.delete({0}, 1, axis=1); np.expand_dims({0}, 1); np.moveaxis({0}, 0, 1)
np.broadcast_to({0}, (2, 2, 3)); np.split({0}, 3, axis=1)[1]; np.vander({0}[0]); np.full_like({0}, 2)
np.zeros_like({0}); np.ones_like({0}, dtype=float); np.clip({0}, 0, 2); np.clip({0}, None, 300)
np.clip({0}, -1, 1); np.quantile({0}, 0.5); np.percentile({0}, [10, 120]); np.partition({0}, 1)
np.gradient({0}, axis=1); np.add.reduce({0}); np.maximum.accumulate({0}); np.multiply.reduce({0}, axis=1)
np.apply_along_axis(np.sum, 1, {0}); np.linalg.norm({0}); np.linalg.norm({0}, axis=1)
np.linalg.matrix_transpose({0}); np.atleast_1d({0}); np.block([[{0}, {0}]]); np.cumulative_sum({0}, axis=1)
np.take_along_axis({0}, np.argsort({0}, axis=1), axis=1); np.meshgrid({0}[0], {0}[1])[1]
np.bincount({0}[0], minlength=300); np.unwrap({0}); np.histogram({0})[0]; np.nanmean({0}, axis=1)
np.apply_over_axes(np.sum, {0}, 0); np.diff({0}, prepend=1); np.diff({0}, n=2); np.insert({0}, 0, 300)
np.insert({0}[0], [1], 2.5); np.linspace({0}[0], 3, 4); np.array([{0}, {0}]); np.asarray({0}, dtype=float)
np.array({0}, copy=True); np.array({0}[0, 0]); np.astype({0}, np.float32); np.trim_zeros({0}[0]); np.unique({0})
np.nonzero({0})[0]; np.corrcoef({0}); np.fft.fft({0}); np.i0({0}); divmod({0}, 2)[1]; abs({0}); -{0}; +{0}; ~{0}
round({0}[0, 1], 1); {0}.round(1); {0}.dot({0}.T); {0}.trace(); {0}.all(); {0}.var(ddof=1)
""".strip()
    .replace("\n", ";")
    .split(";")
)


class _Writer:
    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.arrays = list(ARRAYS)

    def one(self, options: Any) -> Any:
        return self.choice.choice(options)

    def array(self) -> str:
        return str(self.one(self.arrays))

    def operand(self) -> str:
        return self.array() if self.choice.random() < 0.5 else str(self.one(NUMBERS))

    def expression(self) -> str:
        ways = [
            self.unary,
            self.binary,
            self.operator,
            self.operator,
            self.reduction,
            self.joined,
            self.one_of,
            self.two_of,
        ]
        return str(self.one(ways)())

    def unary(self) -> str:
        return f"np.{self.one(UNARY)}({self.array()})"

    def binary(self) -> str:
        operands = [self.array(), self.operand()]
        self.choice.shuffle(operands)
        option = self.one([""] * 6 + [", dtype=float", ", where=b", ", out=np.zeros((2, 3))", ", dtype=np.int64"])
        return f"np.{self.one(BINARY)}({', '.join(operands)}{option})"

    def operator(self) -> str:
        operands = [self.array(), self.operand()]
        self.choice.shuffle(operands)
        return f"{operands[0]} {self.one(OPERATORS)} {operands[1]}"

    def reduction(self) -> str:
        options = [
            "",
            "axis=0",
            "axis=1",
            "axis=-1",
            "axis=(0, 1)",
            "axis=None",
            "keepdims=True",
            "axis=1, keepdims=True",
        ]
        more = ["", "", "", "ddof=1", "initial=300", "where=b", "dtype=float", "dtype=np.float32", "out=np.zeros(3)"]
        given = ", ".join(filter(None, [self.array(), self.one(options), self.one(more)]))
        return f"np.{self.one(REDUCING)}({given})"

    def joined(self) -> str:
        return f"np.{self.one(JOINING)}([{self.array()}, {self.array()}])"

    def one_of(self) -> str:
        return str(self.one(ONE)).strip().format(self.array())

    def two_of(self) -> str:
        return str(self.one(TWO)).strip().format(self.array(), self.array())


def program(seed: int) -> str:
    """Return a function of `ARGUMENTS`, as source text."""
    writer = _Writer(seed)
    lines, made = [], []
    for number in range(writer.one([1, 1, 2, 3])):
        lines.append(f"r{number} = {writer.expression() or writer.unary()}")
        made.append(f"r{number}")
        if writer.choice.random() < 0.35:
            lines.append(f"{writer.one(made)} {writer.one(CHANGES)}= {writer.operand()}")
        writer.arrays.append(f"r{number}")
    return f"def fun({', '.join(ARGUMENTS)}):\n    " + "\n    ".join(lines) + f"\n    return {', '.join(made)},\n"


def function_of(source: str) -> Any:
    made: dict[str, Any] = {"np": np}
    exec(source, made)
    return made["fun"]
