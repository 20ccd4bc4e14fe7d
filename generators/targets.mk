# Image, overlay and bill of materials; included by the Makefile.
IMG ?= controller:latest
PLATFORMS ?= linux/amd64,linux/arm64
# GKE's nodes are amd64 by default; the machine that builds may be another architecture.
PLATFORM ?= linux/amd64
SBOM ?= dist/sbom.cdx.json
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' provisioner/__init__.py)
REVISION = $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# The commit's time, so that the same commit gives the same labels.
CREATED = $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
# Only an https address, which others can reach, and without credentials in it.
SOURCE = $(or $(shell git remote get-url origin 2>/dev/null | sed -n 's|^https://\([^@/]*@\)\{0,1\}|https://|p'),unknown)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
IMAGE_ARGS = --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) --build-arg CREATED=$(CREATED) \
  --build-arg SOURCE=$(SOURCE) --build-arg SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
  $(if $(BASE),--build-context base=docker-image://$(BASE))

.PHONY: docker-build
docker-build: ## Build the image, for PLATFORM (linux/amd64): IMG=...
	docker build --platform=$(PLATFORM) $(IMAGE_ARGS) -t $(IMG) .

.PHONY: docker-push
docker-push: ## Push the image: IMG=...
	docker push $(IMG)

.PHONY: docker-buildx
docker-buildx: ## Build and push for all PLATFORMS, with bill of materials and provenance: IMG=...
	docker buildx build $(IMAGE_ARGS) --platform=$(PLATFORMS) --sbom=true --provenance=mode=max --push -t $(IMG) .

# Needs no virtual environment: it fills two files.
.PHONY: cluster-overlay
cluster-overlay: ## Create deploy/PROJECT_ID/CLUSTER_NAME from the example. [LOCATION= ZONE= NODE_SERVICE_ACCOUNT= IMG= GOOGLE_SERVICE_ACCOUNT= FOLDER= REMOTE= REF=]
	@$(if $(PROJECT_ID),,$(error PROJECT_ID is not set: make cluster-overlay PROJECT_ID=... CLUSTER_NAME=...))
	@$(if $(CLUSTER_NAME),,$(error CLUSTER_NAME is not set: make cluster-overlay PROJECT_ID=... CLUSTER_NAME=...))
	@$(CHECK_PYTHON)
	@$(PYTHON) -B -m generators.overlay --project-id='$(PROJECT_ID)' --cluster-name='$(CLUSTER_NAME)' \
	  --location='$(LOCATION)' --zone='$(ZONE)' --node-service-account='$(NODE_SERVICE_ACCOUNT)' \
	  --google-service-account='$(GOOGLE_SERVICE_ACCOUNT)' --deploy=deploy \
	  --image='$(if $(filter-out file,$(origin IMG)),$(IMG))' --folder='$(FOLDER)' --remote='$(REMOTE)' --ref='$(REF)'

.PHONY: sbom
sbom: $(SETUP) ## Write dist/sbom.cdx.json: the image's locked dependencies, as CycloneDX.
	@$(BIN)/python -m generators.sbom '$(SBOM)'

.PHONY: chart
chart: $(SETUP) ## Generate values.schema.json, README and dashboards of the charts, the alerts, and rights to workloads, from the code.
	@$(BIN)/python -m generators.chart

.PHONY: crds
crds: $(SETUP) ## Copy the CustomResourceDefinitions of the node groups to deploy and to the chart.
	@$(BIN)/python -m generators.crds
