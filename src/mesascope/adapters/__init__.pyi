from .arrays import from_numpy as from_numpy, from_sklearn as from_sklearn
from .calls import CachedModel as CachedModel, UnansweredPrompt as UnansweredPrompt
from .fla import chunk_mesa_net as chunk_mesa_net, from_mesa_net as from_mesa_net
from .local import LocalModel as LocalModel
from .prompts import FORMATS as FORMATS, Format as Format, parse_number as parse_number
from .protocols import AsLearner as AsLearner, AsPredictor as AsPredictor
from .recorded import record as record, replay as replay
from .served import openai_model as openai_model
from .text import TextLearner as TextLearner, from_text as from_text, names_matter as names_matter
from .words import NumberTokenizer as NumberTokenizer, from_language_model as from_language_model
