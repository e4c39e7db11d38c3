from .split import train_side_by_side as train_side_by_side
from .sweep import Sweep as Sweep
from .workers import connected as connected
