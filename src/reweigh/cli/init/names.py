"""What the names of columns say about their roles."""

from __future__ import annotations

import re
import unicodedata

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")

OWN, KNOWN, PART = 3, 2, 1  # the role's own name, a usual name, a name that holds such a word

USUAL = {
    "episode": "episode_id ep ep_id traj traj_id trajectory trajectory_id patient patient_id "
    "subject subject_id session session_id user user_id stay stay_id icustay icustay_id encounter "
    "encounter_id rollout run run_id case case_id ticket ticket_id ticket_no customer customer_id "
    "admission admission_id hadm_id conversation conversation_id game game_id journey",
    "step": "t time timestep time_step ts step_id step_index turn stage bloc block_index k round "
    "move visit seq",
    "state": "s state_id obs observation context cluster cluster_id",
    "action": "a act action_id treatment arm decision intervention choice routed_to assigned_to",
    "reward": "r rew rewards outcome payoff utility click return score points profit revenue",
    "behavior_prob": "behaviour_prob mu mu_prob propensity propensity_score pscore pi_b p_b "
    "behavior_probability behaviour_probability behavior_policy_prob logging_prob logged_prob "
    "action_prob prob_action prob probability p b_prob old_prob",
    "target_prob": "pi pi_e p_e target_probability target_policy_prob eval_prob evaluation_prob "
    "new_prob e_prob",
    "next_state": "s_next next_s sp s_prime next_obs next_observation state_next new_state "
    "observation_next obs_next next_state_id",
    "terminated": "terminal terminals is_terminal done dones end is_done absorbed ended closed",
    "truncated": "timeout timeouts time_limit censored truncation is_truncated cut cut_off",
}
# Words that tell a role inside a longer name, and words that tell another one.
WORDS = {
    "episode": ("episode trajectory patient subject session stay encounter", "step prob reward"),
    "step": ("step timestep time", "limit out prob"),
    "state": ("state obs observation context feature", "next new prime prev previous prob"),
    "action": ("action treatment", "prob probability propensity next prev previous"),
    "reward": ("reward outcome", "prob"),
    "behavior_prob": ("propensity behavior behaviour logging mu", "target eval action state"),
    "target_prob": ("target eval evaluation pi", "behavior behaviour logging"),
    "next_state": ("next", "action reward prob"),
    "terminated": ("terminated terminal done", ""),
    "truncated": ("truncated timeout censored", ""),
}


def words(name: str) -> list[str]:
    """The words of a name: patientID, patient-id and patient_id are the same two."""
    plain = unicodedata.normalize("NFKC", name).replace("'", "_prime")
    return [word.casefold() for word in WORD.findall(plain)]


def rating(role: str, name: str) -> int:
    """How strongly a column's name speaks for a role; 0 if it does not."""
    parts = words(name)
    whole = "_".join(parts)
    if whole == role:
        return OWN
    if whole in USUAL[role].split():
        return KNOWN
    inside, other = WORDS[role]
    if set(parts) & set(inside.split()) and not set(parts) & set(other.split()):
        return PART
    return 0


def stem(name: str) -> str:
    """The first word, which the columns of one state share: state_bp, state_hr."""
    parts = words(name)
    return parts[0] if parts else name
