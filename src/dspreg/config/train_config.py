"""One training as a value: what is trained (`TrainConfig`) and how it is run (`Execution`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from dspreg.config.defaults import (
    FROM_SCRATCH_LR,
    PROTOCOLS,
    DatasetFacts,
    default_options,
    search_seed,
    search_space,
)
from dspreg.config.options import Form, declared_options, option, require_option
from dspreg.config.reading import ALPHA, AUGMENT, COLOURS, DOMAINBED, RESIZE, WINDOW, Reading
from dspreg.config.trained_part import TrainedPart
from dspreg.errors import ConfigError
from dspreg.metrics import ACCURACY, SELECT_BY

AUTO = "auto"
NOTHING = "none"
CHANNELS_FIRST, CHANNELS_LAST = "channels-first", "channels-last"
FOLDED = "folded"  # batch norm, in the environment of a run
OPTIMIZERS = ("adam", "adamw", "nadamw", "sgd", "momentum", "lamb", "lion", "adan")
SCHEDULES = ("constant", "cosine", "linear")
FEATURES = ("default", "token", "mean", "embedding")
TRACKERS = ("tensorboard", "mlflow", "wandb", "trackio")  # each a package, and an extra of its name
TRACK = Form(
    "|".join(TRACKERS),
    f"{', '.join(TRACKERS)}, or several of them with commas between",
    lambda text: set(text.split(",")) <= set(TRACKERS) and len(set(text.split(","))) == text.count(",") + 1,
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What is trained: everything here decides the result.

        config = dspreg.TrainConfig(dataset="digits", targets=("print",), algorithm="CORAL+DSPReg", steps=300)
        dspreg.train(config, dspreg.Execution(), "runs/print")

    An option that is None is left open: `resolve_config` gives it the default of the data set and the protocol.
    """

    dataset: str = option("digits, a benchmark such as PACS (see dspreg data list), folder:PATH or index:FILE.csv")
    targets: tuple[str, ...] = option("domains held out: training never sees them", ())
    algorithm: str = option("a spec such as ERM, DSPReg or CORAL(weight=0.5)+DSPReg", None)
    protocol: str = option("how models are trained and validated", "domainbed", choices=tuple(PROTOCOLS))
    trial: int = option("seed of the split, the initial weights and the batch order", 0, at_least=0)
    draw: int = option("0: default options; n: the n-th random draw of them", 0, at_least=0)
    same_draws: bool = option("use the same n-th draw in all trials; DomainBed draws anew in each", False)
    model: str = option("any timm name, small-cnn, or the import path of your own, e.g. my_networks.Encoder", None)
    weights: str = option("pretrained weights: default (the hub's), none, or a safetensors file", None)
    image_size: int = option("height and width of images in pixels", None, at_least=1)
    steps: int = option("training steps", None, at_least=1)
    batch_size: int = option("images per source domain and step", None, at_least=1)
    lr: float = option("learning rate", None, above=0)
    weight_decay: float = option("weight decay", None, at_least=0)
    dropout: float = option("dropout after the pooled features", None, at_least=0, below=1)
    frozen_bn: bool = option("freeze batch-norm running statistics (affine parameters still train)", None)
    augment: str = option("random changes of training images. domainbed: crop, flip, colours, grey; light: crop and "
                          "flip; trivial, augmix: TrivialAugment or AugMix after crop and flip; or your function from "
                          "a PIL image to another", None, form=AUGMENT,
                          recorded={"domainbed": True, "none": False})  # fmt: skip
    augment_validation: bool = option("augment the validation images of source domains, as DomainBed does", None)
    split: str = option("how a domain is split into training and validation images: by position as DomainBed does, by "
                        "class, or by class with whole groups and the parts that the images' table gives", None,
                        choices=("domainbed", "stratified", "grouped"), resumes=True)  # fmt: skip
    image_weights: bool = option("weight images in the loss by the column weight of their table", None, before=False)
    balance: str = option("make up for rare classes: by weights in the loss, or by drawing all classes equally often",
                          "none", choices=("none", "loss", "sampling"), before="none")  # fmt: skip
    holdout: float = option("share of a domain's images held out for validation; 0: train on every image of the "
                            "sources, for a final model that is that of the last step", None,
                            at_least=0, below=1)  # fmt: skip
    evaluate_every: int = option("steps between evaluations; the first and the last step are always evaluated", None,
                                 at_least=1)  # fmt: skip
    evaluate: str = option("splits to evaluate: those that model selection needs, or all of all domains", "needed",
                           choices=("needed", "all"))  # fmt: skip
    evaluation_batch: int = option("images per batch in evaluation", None, at_least=1)
    exif: bool = option("turn images as their EXIF orientation says", None, before=DOMAINBED["exif"])
    alpha: str = option("what is behind transparent images; drop: their hidden colours", None, choices=ALPHA,
                        before=DOMAINBED["alpha"])  # fmt: skip
    window: str = option("values of 16-bit, float and DICOM images that become black and white: MIN:MAX, percentiles "
                         "0.5 and 99.5 of each image, or auto: the window that a DICOM file names, else percentiles",
                         None, form=WINDOW, before=DOMAINBED["window"])  # fmt: skip
    channels: int = option("channels of images: 3 for RGB, 1 for grey, or as many as files have; unless 3, they are "
                           "normalised as the sources' training images are", None, at_least=1, before=3)  # fmt: skip
    resize: str = option("how an image becomes a square: squash it, crop its middle, or pad it with black", None,
                         choices=RESIZE, before=DOMAINBED["resize"])  # fmt: skip
    shrink: bool = option("decode images at a lower resolution where they are at least four times as large as the "
                          "network needs", None, before=DOMAINBED["shrink"])  # fmt: skip
    optimizer: str = option("adam is torch's; others are timm's, of which sgd has Nesterov's momentum", "adam",
                            choices=OPTIMIZERS, before="adam")  # fmt: skip
    schedule: str = option("of the learning rate; all but constant end at 0", "constant", choices=SCHEDULES,
                           before="constant")  # fmt: skip
    warmup: int = option("steps in which the learning rate rises to its own", 0, at_least=0, before=0)
    layer_decay: float = option("factor on the learning rate from each layer to the one before it, by timm's groups",
                                1.0, above=0, before=1.0)  # fmt: skip
    train: str = option("all, head, last:N (blocks), lora(r=8), or mask:FILE of a profile", "all", before="all")
    features: str = option("of a transformer: default (as timm pools), token (class token), mean (of patch tokens), "
                           "embedding (of a CLIP network)", None, choices=FEATURES, before="default")  # fmt: skip
    head: str = option("how the classifier starts: random, or a file of dspreg head make", "random", before="random")
    select_by: str = option("what selects the step, of held-out images of the sources: the mean over them of a metric, "
                            "or the accuracy of the worst of them", ACCURACY, choices=SELECT_BY,
                            before=ACCURACY)  # fmt: skip
    patience: int = option("stop after so many evaluations in a row without a better one, by held-out images of the "
                           "sources; 0: never", 0, at_least=0, before=0)  # fmt: skip
    init: str = option("start from the weights of a finished run, given by its folder", NOTHING, before=NOTHING)

    def __post_init__(self) -> None:
        for name, each in TRAIN_OPTIONS.items():
            value = each.from_record(getattr(self, name))
            if value is None and each.is_open:
                continue
            each.check(value)
            if each.recorded:
                object.__setattr__(self, name, value)
            if each.type is float:  # 0 and 0.0 are one training, and the id of a run is made of what is written
                object.__setattr__(self, name, float(value))
        object.__setattr__(self, "train", str(TrainedPart.parse(self.train)))
        self._check_validation()

    @property
    def part(self) -> TrainedPart:
        """What `train` says."""
        return TrainedPart.parse(self.train)

    def _check_validation(self) -> None:
        """Refuse what needs held-out images where none are held out."""
        needs = [f"patience={self.patience}"] if self.patience else []
        needs += [f"select_by={self.select_by}"] if self.select_by != ACCURACY else []
        if self.holdout == 0 and needs:
            raise ConfigError(
                f"{' and '.join(needs)} need held-out images of the sources, and holdout=0 holds none out: the model "
                "is that of the last step. Leave it out, or hold some out"
            )

    @staticmethod
    def of(given: Mapping[str, Any] | TrainConfig) -> TrainConfig:
        """From options by name; a configuration is returned as it is."""
        if isinstance(given, TrainConfig):
            return given
        values: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None
        }
        for name in values:
            require_option(name, OPTIONS)
            if name not in TRAIN_OPTIONS:
                raise ConfigError(f"{name!r} says how it is run and not what is trained; give it to Execution")
        if not values.get("dataset"):
            raise ConfigError("no data set is given; add --dataset, e.g. --dataset digits")
        return TrainConfig(**values)

    def to_mapping(self) -> dict[str, Any]:
        """The options that are not left open."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

    def to_record(self) -> dict[str, Any]:
        """All options as run.json has them: those that came later are left out where they are what they were before."""
        given = {name: value for name, value in asdict(self).items() if value != TRAIN_OPTIONS[name].before}
        return {name: TRAIN_OPTIONS[name].to_record(value) for name, value in given.items()}

    @staticmethod
    def from_record(settings: Mapping[str, Any]) -> TrainConfig:
        """From the settings in run.json, of this or of an earlier version."""
        return TrainConfig.of(complete_record(settings))

    @property
    def validation_augment(self) -> str:
        """How validation images of sources are changed."""
        if not self.augment_validation:
            return "none"
        return "domainbed" if self.augment == "none" else self.augment

    @property
    def reading(self) -> Reading:
        """How image files are read, where every option is filled in."""
        return Reading.of(vars(self))

    def describe_reading(self) -> str:
        """How files become what the network sees, in words; every option is filled in."""
        parts = ["RGB" if self.channels == 3 else "grey" if self.channels == 1 else f"{self.channels} channels"]
        parts.append("turned as EXIF says" if self.exif else "as they are stored, whatever EXIF says")
        if self.channels in (1, 3):
            parts.append(f"on {self.alpha} where transparent" if self.alpha != "drop" else "without their transparency")
        if self.window != "none":
            parts.append(f"more than 8 bits through the window {self.window}")
        parts += ["large ones decoded at a lower resolution"] if self.shrink else []
        how = {"squash": "squashed to", "crop": "the middle cut to", "pad": "padded with black to"}[self.resize]
        return ", ".join([*parts, f"{how} {self.image_size} × {self.image_size}"])


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How it is run. Device, threads, precision, layout, fold_bn and compile alone touch the result, by rounding."""

    root: str | None = option("folder that holds the data sets (default: data)", None)
    name: str | None = option("name of a folder: or index: data set (default: the last part of its path)", None)
    device: str = option("cpu, cuda, cuda:1, mps, or auto: the first of cuda, mps and cpu that is there", "auto")
    threads: int | None = option("CPU threads (default: OMP_NUM_THREADS, or all cores); results are bitwise identical "
                                 "only for the same number", None, at_least=1)  # fmt: skip
    precision: str = option("bf16 and fp16 run the network under autocast, fp16 with scaled losses; tf32 is for CUDA",
                            "fp32", choices=("fp32", "tf32", "bf16", "fp16"), aliases={"float32": "fp32"})  # fmt: skip
    layout: str = option("memory format of images; auto: on a CPU the faster one, by a short probe of the network",
                         "auto", choices=("auto", CHANNELS_FIRST, CHANNELS_LAST))  # fmt: skip
    fold_bn: str = option("compute frozen batch norm within the convolution before it, which is faster; auto: on a CPU "
                          "in fp32", "auto", choices=("auto", "always", "never"))  # fmt: skip
    compile: bool = option("compile the network with torch.compile, where the method allows it; takes a minute", False)
    workers: int | None = option("processes that read images; results do not depend on it", None, at_least=0)
    cache: str = option("keep decoded images between runs; auto: on disk, where they fit", "auto",
                        choices=("auto", "none", "ram", "disk"))  # fmt: skip
    keep: str = option("models to keep: none, the selected and the last (best), or those of all evaluations", "best",
                       choices=("none", "best", "all"))  # fmt: skip
    keep_checkpoint: bool = option("keep the checkpoint before the last step, so that the finished run can take more "
                                   "--steps", False)  # fmt: skip
    save_every: int | None = option("steps between checkpoints (default: at evaluations and every two minutes)",
                                    None, at_least=1)  # fmt: skip
    profile: str = option("measure c before and after training: with DSPReg (auto), always or never", "auto",
                          choices=("auto", "always", "never"))  # fmt: skip
    check_images: str = option("decode every image once before the first training on it", "once",
                               choices=("once", "never"))  # fmt: skip
    track: str | None = option("send the curves of every evaluation to a tracker, or to several, with commas between "
                               "them: tensorboard, mlflow, wandb, trackio; each needs its extra", None,
                               form=TRACK)  # fmt: skip
    tensorboard: bool = option("the same as --track tensorboard", False)
    domainbed_records: bool = option("also write results.jsonl in DomainBed's layout; evaluates all splits", False)
    allow_changed_environment: bool = option("resume although versions, threads or device changed; the results will "
                                             "not be bitwise identical", False)  # fmt: skip

    def __post_init__(self) -> None:
        for name, each in EXECUTION_OPTIONS.items():
            value = getattr(self, name)
            if value in each.aliases:
                object.__setattr__(self, name, value := each.aliases[value])
            each.check(value)

    @property
    def recorded_precision(self) -> str:
        """The word that records have: for fp32 the one that they had when it was called so, or ids would change."""
        return "float32" if self.precision == "fp32" else self.precision


TRAIN_OPTIONS = declared_options(TrainConfig)
EXECUTION_OPTIONS = declared_options(Execution)
OPTIONS = TRAIN_OPTIONS | EXECUTION_OPTIONS


def complete_record(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in run.json, with what goes without saying: options that came after the run was begun."""
    unsaid = {name: each.before for name, each in TRAIN_OPTIONS.items() if each.before is not MISSING}
    said = {name: TRAIN_OPTIONS[name].from_record(v) if name in TRAIN_OPTIONS else v for name, v in settings.items()}
    return {**unsaid, **said}


def require_options_of_tensors(values: Mapping[str, Any], data: DatasetFacts) -> None:
    """Refuse options of images, and ask for a network: none is usual for all tensors."""
    if not values["model"]:
        raise ConfigError(
            f"{data.name} is of tensors, for which there is no usual network: give model=, the import path of yours, "
            "such as my_networks.Encoder"
        )
    for name, usual in (("augment", "none"), ("augment_validation", False)):
        if values[name] not in (usual, False):
            raise ConfigError(f"{name} is for images, and {data.name} is of tensors; augment them in your data set")
    if values["image_size"] != data.image_size:
        raise ConfigError(f"image_size is for images, and {data.name} is of tensors; leave it out")


def resolve_config(config: TrainConfig, data: DatasetFacts, begun: Mapping[str, Any] | None = None) -> TrainConfig:
    """All options filled in: given ones, then the random draw, then the defaults of data set and protocol.

    Args:
        config: As the user gave it.
        data: The data set.
        begun: The settings in run.json of a training that is resumed. Options that came later, or whose default has
            changed, go on as it was begun.
    """
    given = config.to_mapping()
    if begun is not None:
        then = complete_record(begun)
        kept = {n for n, each in TRAIN_OPTIONS.items() if (each.before is not MISSING or each.resumes) and each.is_open}
        given = {name: then[name] for name in kept if name in then} | given
    if len(given) == len(TRAIN_OPTIONS):
        return config if given == config.to_mapping() else TrainConfig(**given)
    values = default_options(config.protocol, data)
    usual_steps = values["steps"]
    if config.draw:
        seed = search_seed(config.draw, config.trial, config.same_draws)
        values |= {name: prior.draw(seed, name) for name, prior in search_space(data).items()}
    values |= given
    if data.tensors:
        require_options_of_tensors(values, data)
    if config.model == "small-cnn" and "lr" not in given and not config.draw:
        values["lr"] = FROM_SCRATCH_LR
    if values["train"] == "head" and "augment" not in given:
        values["augment"] = "none"  # so that features of a frozen backbone are computed once
    if values["channels"] != 3 and values["augment"] in COLOURS:
        if "augment" in given:
            raise ConfigError(
                f"augment={values['augment']} changes colours, and images of {values['channels']} channels have none; "
                "use light, none, or a function of yours"
            )
        values["augment"] = "light"
    if values["augment"] != "domainbed" and "augment_validation" not in given:
        values["augment_validation"] = False
    if config.init != NOTHING and "weights" not in given:
        values["weights"] = "none"  # they would be replaced
    elif "frozen_bn" not in given and values["weights"] == "none" and values["train"] == "all":
        values["frozen_bn"] = False  # untrained statistics are not worth keeping
    if "features" not in given and values["head"] != "random":
        values["features"] = "embedding"  # the vector that a text head compares with those of texts
    if "evaluate_every" not in given and values["steps"] < usual_steps:
        values["evaluate_every"] = max(1, round(values["evaluate_every"] * values["steps"] / usual_steps))
    if config.protocol == "swad" and "steps" not in given:  # so that the last step is an evaluated one
        values["steps"] = values["steps"] // values["evaluate_every"] * values["evaluate_every"] + 1
    return TrainConfig(**values)
