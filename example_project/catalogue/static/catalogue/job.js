"use strict";

(() => {
  const EVERY = 1000;
  const SLOWEST = 15000;
  const page = document.querySelector("[data-job]");
  const part = (name) => page.querySelector(`[data-${name}]`);
  const labels = JSON.parse(page.dataset.labels);
  let timer = null;
  let pause = EVERY;

  const setText = (element, text) => {
    // An unchanged text is left alone, so that screen readers are not told it again.
    if (element.textContent !== text) element.textContent = text;
  };

  const show = (job) => {
    setText(part("label"), labels[job.state]);
    part("label").className = `state ${job.state}`;
    setText(part("position"), job.position ? `Position ${job.position} in the backlog` : "");
    const { done, total } = job.progress ?? { done: 0, total: 0 };
    part("progress").hidden = !total;
    part("progress").querySelector("progress").max = total || 1;
    part("progress").querySelector("progress").value = done;
    setText(part("done"), `${done} of ${total}`);
    part("figures").hidden = Object.keys(job.stats).length === 0;
    page.querySelectorAll("[data-stat]").forEach((figure) => {
      setText(figure, String(job.stats[figure.dataset.stat] ?? 0));
    });
  };

  const poll = async () => {
    timer = null;
    try {
      const response = await fetch(page.dataset.job, { headers: { Accept: "application/json" } });
      if (response.redirected || response.status === 404) return window.location.reload();
      if (!response.ok) throw new Error(response.statusText);
      const job = await response.json();
      show(job);
      if (job.ended_at) return window.location.reload();
      pause = EVERY;
    } catch {
      pause = Math.min(pause * 2, SLOWEST);
    }
    plan();
  };

  const plan = () => {
    if (!document.hidden && timer === null) timer = window.setTimeout(poll, pause);
  };

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      window.clearTimeout(timer);
      timer = null;
    } else if (timer === null) {
      poll();
    }
  });

  plan();
})();
