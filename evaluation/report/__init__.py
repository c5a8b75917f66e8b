"""Reports of finished runs: pages in HTML, with tables and figures beside them.

Three files each make a page: `all_sites` for whoever steers, `one_site` for a hospital, `survey_page` before training.
What they are made of, by what a reader sees:

- sentences: `summary` picks what to say, `statements` says it of gains, contributions and Dice, `accusations` of
  suspected sites, `caveats` of what to know first; `judgements` tells what may be said, `words` how numbers read;
- the first screen: `hospitals`, a row each;
- tables: `all_sites_tables` of all, `own_tables` (from `own_site`) of one; single ones are `contribution_shares`,
  `agreement`, `other_models`, `guard_bounds`, `guard_verdicts`, `marks` (who was flagged, and why);
- pictures: `overlay`, `observed_values`; `alt_texts` puts figures into words;
- `parts`: what the pages have in common.
"""
