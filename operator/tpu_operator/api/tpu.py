"""What TPUs a workload asks for, with validation rules generated from the catalog."""

from pydantic import ConfigDict, Field

from tpu_operator.api.common import LabelValue, Model, ObjectName
from tpu_operator.api.extensions import SERVER_DEFAULT, rule, validations
from tpu_operator.api.tpu_rules import slice_rules, topology_form, tpu_rules

MAX_SLICES = 1024
MAX_CHIPS_PER_HOST = 256

_ONE_CAPACITY = (
    "[has(self.spot) && self.spot, has(self.flexStart) && self.flexStart, "
    "has(self.reservation), has(self.provisioningRequest)].filter(x, x).size() <= 1"
)


class Capacity(Model):
    """Which kind of GKE capacity to use; on-demand when empty."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                _ONE_CAPACITY,
                "must name one kind of capacity: keep one of spot, flexStart, reservation "
                "and provisioningRequest",
            )
        )
    )

    spot: bool = Field(default=False, description="Use Spot nodes, which may be preempted at any time.")
    flex_start: bool = Field(
        default=False, description="Use flex-start nodes of the Dynamic Workload Scheduler."
    )
    reservation: LabelValue | None = Field(default=None, description="Use the nodes of this reservation.")
    provisioning_request: ObjectName | None = Field(
        default=None, description="Use the nodes that this ProvisioningRequest has brought up."
    )
    node_pool: LabelValue | None = Field(
        default=None, description="Use this node pool; may be combined with the other fields."
    )


class SliceSpec(Model):
    """Which TPUs, in a slice of which shape."""

    model_config = ConfigDict(json_schema_extra=validations(*slice_rules()))

    accelerator: LabelValue = Field(
        description="Kind of TPU: v4, v5e, v5p, v6e or tpu7x, or a value of the node label "
        "cloud.google.com/gke-tpu-accelerator, such as tpu-v5-lite-podslice. "
        "One that the operator does not know needs chipsPerHost too."
    )
    topology: str = Field(
        description='Chips of a slice in each dimension, such as "4x4" or "2x2x4". '
        "Decides the number of chips, and with chipsPerHost the number of hosts.",
        min_length=1,
        max_length=11,
        json_schema_extra=validations(topology_form()),
    )
    chips_per_host: int | None = Field(
        default=None,
        description="Chips of one host. Needed only where accelerator and topology leave it open "
        "(2x4 on v5e and v6e is one host of 8 or two hosts of 4) or the accelerator is unknown.",
        ge=1,
        le=MAX_CHIPS_PER_HOST,
    )
    capacity: Capacity = Field(
        default=Capacity(), description="Which kind of GKE capacity to use; on-demand when empty."
    )


class TPUSpec(SliceSpec):
    """Which TPUs, in slices of which shape, and how many slices."""

    model_config = ConfigDict(json_schema_extra=validations(*tpu_rules()))

    slices: int = Field(
        default=1,
        description="Number of slices, all of the same shape. More than one is multislice over the "
        "data centre network. All of them, spare ones included, may have 16,384 hosts in all.",
        ge=1,
        le=MAX_SLICES,
        json_schema_extra={SERVER_DEFAULT: True},
    )
    spare_slices: int = Field(
        default=0,
        description="Slices kept warm beside them, to take over from one that is lost.",
        ge=0,
        le=MAX_SLICES,
    )
