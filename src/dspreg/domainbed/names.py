"""What DomainBed's collect_results knows by name, in its order: anything else it leaves out or puts last."""

SPAWRIOUS = ("Test", "SC_group_1", "SC_group_2")
DATASETS = {  # data set → its environments, as table headings have them
    "Debug28": ("0", "1", "2"),
    "Debug224": ("0", "1", "2"),
    "ColoredMNIST": ("+90%", "+80%", "-90%"),
    "RotatedMNIST": ("0", "15", "30", "45", "60", "75"),
    "VLCS": ("C", "L", "S", "V"),
    "PACS": ("A", "C", "P", "S"),
    "OfficeHome": ("A", "C", "P", "R"),
    "TerraIncognita": ("L100", "L38", "L43", "L46"),
    "DomainNet": ("clip", "info", "paint", "quick", "real", "sketch"),
    "SVIRO": ("aclass", "escape", "hilux", "i3", "lexus", "tesla", "tiguan", "tucson", "x5", "zoe"),
    "WILDSCamelyon": tuple(f"hospital_{i}" for i in range(5)),
    "WILDSFMoW": tuple(f"region_{i}" for i in range(6)),
    **{f"Spawrious{kind}_{level}": SPAWRIOUS for kind in ("O2O", "M2M") for level in ("easy", "medium", "hard")},
}
ALGORITHMS = (
    "ERM", "ERMPlusPlus", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL", "SagNet",
    "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA", "SelfReg", "Fishr", "TRM", "IB_ERM", "IB_IRM", "CAD",
    "CondCAD", "Transfer", "CausIRL_CORAL", "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "URM",
)  # fmt: skip
