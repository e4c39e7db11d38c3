from .checks import check_family as check_family, check_learner as check_learner, check_predictor as check_predictor
