"""The bill of materials of a program: its checkpoint, data and packages, as a CycloneDX document."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from prgec.core.contract.manifest import Manifest
from prgec.core.machine.extras import extra_hint
from prgec.core.machine.files import sha256_of
from prgec.errors import UsageError

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

# The other versions of a manifest are of SDKs and chips.
_PYTHON_PACKAGES = ("prgec", "torch", "executorch", "torchao", "transformers", "openvino", "coremltools")


def bill_of_materials(program: Path, manifest: Manifest) -> str:
    """Return the bill of materials of a program, as CycloneDX 1.6 in JSON; equal programs have equal ones.

    Args:
        program: The .pte.
        manifest: Its manifest.

    Raises:
        UsageError: If the package cyclonedx-python-lib is not installed.
    """
    try:
        from cyclonedx.model.bom import Bom, BomMetaData
        from cyclonedx.output import make_outputter
        from cyclonedx.schema import OutputFormat, SchemaVersion
    except ModuleNotFoundError as error:
        raise UsageError("a bill of materials needs cyclonedx-python-lib", hint=extra_hint("bom")) from error
    sha256 = sha256_of(program)
    bom = Bom(
        # A name of the program instead of a random number.
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, sha256),
        metadata=BomMetaData(component=_program(program, manifest, sha256)),
        components=_parts(manifest),
    )
    bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.register_dependency(bom.metadata.component, bom.components)  # type: ignore[arg-type]
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)


def _program(program: Path, manifest: Manifest, sha256: str) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component, ComponentType

    facts = {"backend": manifest.backend, "method": manifest.method, "pipeline": manifest.pipeline}
    return Component(
        name=program.name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="program",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
        properties=[Property(name=f"prgec:{name}", value=value) for name, value in facts.items()],
    )


def _parts(manifest: Manifest) -> list[Component]:
    """Return the checkpoint, the data and the packages, each with what identifies it."""
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    # These are hashes over tensors and tokens, however the files are cut and packed.
    weights = {"prgec:weights-sha256": manifest.base_sha256, "prgec:given-a-sha256": manifest.a_sha256}
    parts = [
        Component(
            name=manifest.model,
            type=ComponentType.MACHINE_LEARNING_MODEL,
            bom_ref="checkpoint",
            description=manifest.architecture,
            properties=[Property(name=name, value=value) for name, value in weights.items() if value],
        )
    ]
    if manifest.prompts_sha256:
        tokens = Property(name="prgec:prompts-sha256", value=manifest.prompts_sha256)
        parts.append(
            Component(name="prompts for rounding", type=ComponentType.DATA, bom_ref="data", properties=[tokens])
        )
    for name, version in sorted(manifest.versions.items()):
        purl = PackageURL(type="pypi", name=name, version=version) if name in _PYTHON_PACKAGES else None
        parts.append(Component(name=name, version=version, purl=purl, bom_ref=f"{name}@{version}"))
    return parts
