"""What studies/scripts/theory_checks.py measures: one sentence per key, in our own words."""

from __future__ import annotations

TINY = "over all logs of five tiny worlds"
EXAMPLE = "for ratios 0.4 and 1.6 at H = 50"

STATEMENTS = {
    # the fictitious estimator
    "lemma-approximation": "Clipped MIS has at most the squared error of the fictitious estimator "
    f"plus an exponentially small term: largest ratio of the two sides {TINY}.",
    "lemma-approximation-close": "Clipped MIS has at most the squared error of the fictitious "
    "estimator where their bound's last term is below 1e-8: ratio over drawn logs of 400 episodes.",
    "lemma-unbiased-value": "The fictitious estimator has no bias for any delta < 1: largest bias "
    f"{TINY}.",
    "lemma-unbiased-marginals": "The fictitious state distributions have no bias: largest bias "
    f"{TINY}.",
    "lemma-variance": "The variance of the fictitious estimator is the start's variance plus one "
    f"term per step and state: largest relative difference {TINY}.",
    "lemma-covariance": "The covariance of the fictitious state distribution is below its bound as "
    f"a matrix: largest eigenvalue of covariance minus bound {TINY}.",
    "corollary-variance": "From the second step on, the variance of each fictitious state "
    f"probability is at most the diagonal of the covariance's bound: largest ratio {TINY}.",
    "fictitious-is-mis-where-visited": "The fictitious estimator equals plain MIS where every "
    "state is visited enough: largest difference on such logs of 20 episodes in five worlds.",
    "fictitious-is-mis": "Where (1 - delta) n d <= 1 in every state, the fictitious estimator is "
    f"plain MIS on every log, visited or not: largest difference {TINY}.",
    "theorem-propagation": "The variance of the fictitious state probabilities is at most "
    "2 h tau_a tau_s d / ((1 - delta) n), linear in the step: largest ratio in four worlds of six "
    "steps.",
    "theorem-propagation-tight": "The bound 2 h tau_a tau_s d / ((1 - delta) n) on the variance of "
    "the fictitious state probabilities is tight: largest ratio of variance to bound in four "
    "worlds.",
    "sketch-propagation": "The proof sketch gives 2 h d / ((1 - delta) n), without the largest "
    "ratios, as a bound: n times the variance in a world with a rare action, against n times that.",
    "lemma-chernoff": "Both multiplicative Chernoff bounds hold (the lower one for delta < 1): "
    "largest ratio of the exact binomial tail to its bound over 980 cases.",
    # bias
    "mis-plain-unbiased": "Plain MIS has no bias on complete logs of any size: largest bias "
    f"{TINY}.",
    "sketch-bias": "MIS loses the mass of states without visits (the proof sketch's second "
    f"challenge): largest expected mass that plain MIS loses {TINY}, against the mass of such "
    "states.",
    "clipping": "Clipping to the range of values never makes an estimate worse: largest increase "
    f"of the absolute error on any log {TINY}.",
    "clipping-bias": "Clipping plain MIS at the largest value biases it downwards: the bias that "
    f"is closest to 0 {TINY}.",
    "simplex-bias": "Normalizing to the simplex has a bias of order 1/n: n times the bias over all "
    "logs of 800 episodes of a world with two trajectories, against its first-order value.",
    # Theorem 4.1
    "theorem-bound": "Theorem 4.1: clipped MIS's squared error is at most its bound: largest ratio",
    "corollary-bound": "Corollary 1: clipped MIS's squared error is at most "
    "(4/n) tau_a tau_s (H sigma^2 + H^3 R_max^2): largest ratio",
    "asymptotic-mis-plain": "n times the squared error of plain MIS over Theorem 4.1's leading "
    "term, at n = 10,000",
    "asymptotic-mis": "n times the squared error of MIS on the simplex over its own leading term, "
    "at n = 10,000",
    "asymptotic-dm": "n times the squared error of DM over the Cramér-Rao bound, at n = 10,000",
    "excess-mis-plain": "n times the squared error of plain MIS over the leading term, at "
    "n = 1,000 and by the variance's parts, which have less Monte-Carlo error",
    "excess-rate": "The relative excess of plain MIS's squared error over its leading term falls "
    "like 1/n, faster than the theorem's n^(-1/2): its sum over ten worlds at n = 100 over that at "
    "n = 1,000.",
    # the horizon: an exponent of growth between H = 400 and 800
    "growth-fixed-ratios": "Leading term, fixed ratios, reward 1 per step",
    "growth-on-policy": "Leading term, target equal to behavior, fate fixed at the start",
    "growth-near-policy": "Leading term, ratios 1 ± 1/sqrt(H), reward 1 per step",
    "growth-nearer-policy": "Leading term, ratios 1 ± 1/H, fate fixed at the start",
    "growth-constant-value": "Leading term, one reward at the end, so that V_max is constant",
    "growth-cubic-leading": "Leading term, constant noisy rewards in the second half",
    "growth-cubic-cramer-rao": "Cramér-Rao bound, constant noisy rewards in the second half, fate "
    "fixed at the start",
    "growth-cubic-simplex": "MIS on the simplex, constant rewards in the second half",
    "growth-time-varying": "MIS on the simplex in the paper's time-varying world",
    "growth-model-win": "MIS on the simplex in ModelWin",
    "growth-model-fail": "MIS on the simplex in ModelFail",
    "growth-time-varying-relative": "Relative root mean squared error in the time-varying world "
    "grows as H^1.5 (the appendix; the main text has H^0.5)",
    # Cramér–Rao
    "leading-is-cramer-rao-plus-gap": "The leading term is the Cramér-Rao bound plus Var[rho Q], "
    "if the bound counts the start's variance: largest relative difference in ten random worlds.",
    "cramer-rao-display": "The Cramér-Rao display of section 4, which starts at the first step, is "
    "complete: largest share of the leading term that it misses in ten random worlds, the start's "
    "variance.",
    "cramer-rao-quadratic": "The Cramér-Rao bound is at most "
    "tau_a tau_s (H^2 R_max^2 + H sigma^2): largest ratio in ten random worlds.",
    "cubic-closed-form": "Constant rewards of R_max/2 in the second half give a leading term of "
    "about H^3/24 times Var[rho]: at H = 64, over H^3 Var[rho].",
    "cubic-every-step": "With constant rewards of R_max/2 in the second half every step adds at "
    "least H^2 R_max^2/16 Var[rho]: the share of the steps that do (those of the first half and "
    "one more), at H = 64.",
    "factor-of-h": "The leading term exceeds the Cramér-Rao bound by at most a factor of H (so it "
    "is for the worst case over worlds; in a single world the ratio has no limit): their ratio "
    "over H, for constant rewards in the second half with little noise at H = 64.",
    # remarks
    "on-policy-bound": "For a target equal to the behavior the leading term is at most "
    "3 V_max^2 + H sigma^2, if V_max is at least R_max: largest ratio in six random worlds.",
    "on-policy-bound-rare-reward": "For a target equal to the behavior the leading term is at "
    "most 3 V_max^2 + H sigma^2 with V_max the largest value, whatever R_max: ratio for a reward "
    "of 1 that comes once in a hundred episodes.",
    "finite-actions": "With a behavior that is uniform over states and actions, H^3 S A / eps^2 "
    "episodes are enough: leading term over H^3 S A R_max^2 in one world of five states and "
    "actions.",
    # Example 1
    "example-product": "IS's variance with a reward of 1 at the end is (E[rho^2])^H - 1: its "
    f"logarithm {EXAMPLE}.",
    "example-mean": f"The sum of log ratios has mean -H E_log: its mean {EXAMPLE}. It is +H E_log.",
    "example-spread": f"The sum of log ratios has variance H V_log: its variance {EXAMPLE}.",
    "example-variance": "The product's variance is exp(H V_log) - 1, as of a log-normal: logarithm "
    f"of the exact variance {EXAMPLE}.",
    "example-lognormal": "The product's variance is the log-normal's, set right: "
    "(exp(H V) - 1) exp(2 H E + H V), with E < 0. Logarithm of the exact variance, which comes "
    f"from products too rare for the central limit theorem, {EXAMPLE}.",
    "example-near-one": "For ratios near 1 the variance grows per step by V_log to first order: "
    "log E[rho^2] over V_log for ratios 1 ± 0.03.",
    "example-mis": "MIS's leading term with a reward of 1 at the end is linear, H Var[rho]: "
    f"leading term {EXAMPLE}.",
    # the marginalized framework
    "lemma-frameworks": "With the true weights both frameworks agree in expectation at every step, "
    "for any Q: largest difference over all trajectories of three tiny worlds.",
    "framework-unbiased": "MDR with a wrong fixed Q and plain MIS's weights has no bias: largest "
    "bias over all logs of three tiny worlds.",
    "framework-weights": "Plain MIS's weights are unbiased given that the state is visited: "
    "largest bias over all logs of three tiny worlds.",
    "framework-unconditional": "Unbiased weights keep an estimator unbiased (they must be so given "
    "the episode's state): largest bias in three tiny worlds with weights that are unbiased only "
    "without that condition.",
    "framework-control": "Each control variate f_t has mean 0 under the target (only g and all f_t "
    "together do): largest mean of one f_t with the true Q in three tiny worlds.",
}
