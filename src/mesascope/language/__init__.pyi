from .estimating import estimate_language_model as estimate_language_model
from .inspecting import (
    HeadScores as HeadScores,
    Inspection as Inspection,
    head_scores as head_scores,
    inspect as inspect,
)
from .learning import (
    LanguageTraining as LanguageTraining,
    new_language_run as new_language_run,
    resume_language_run as resume_language_run,
    train_language_model as train_language_model,
)
from .losses import (
    Evaluation as Evaluation,
    corpus_windows as corpus_windows,
    evaluate as evaluate,
    in_context_score as in_context_score,
    losses_by_octave as losses_by_octave,
    next_token_loss as next_token_loss,
    recall_accuracy as recall_accuracy,
    recall_by_sequence as recall_by_sequence,
    recall_loss as recall_loss,
    token_losses as token_losses,
)
from .models import language_model_config as language_model_config, named_layers as named_layers
from .preparing import prepare as prepare
from .sampling import generate as generate, load_language_model as load_language_model
from .shards import Corpus as Corpus, open_corpus as open_corpus
from .windows import TextWindows as TextWindows
